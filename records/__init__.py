"""Image folders -> TFRecord shards, and checking shards: the tool behind `tf_cnn_benchmarks.py records`."""


def main(argv: list[str]) -> int:
    """Runs the tool; argv is what follows the word `records`. See records.command.main."""
    # Decoding processes import this package for records.images alone, and should not pay for the command.
    from records import command

    return command.main(argv)
