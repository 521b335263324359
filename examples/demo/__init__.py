"""The demo: `make demo`, or `python -m examples.demo` from the repository's top."""
