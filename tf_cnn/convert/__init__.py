"""Converts image folders to TFRecord shards, and checks shards."""
