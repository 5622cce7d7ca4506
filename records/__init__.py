"""Image folders -> TFRecord shards, and checking shards."""
