"""`python -m kvsize`, and the entry point of the `kvsize` command."""

import sys


def main() -> None:
    """Run the command line; `--version` alone is answered before anything heavy is imported."""
    if sys.argv[1:] in (["--version"], ["-V"]):
        from kvsize import __version__

        sys.stdout.write(f"kvsize {__version__}\n")
        return
    from kvsize.cli import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
