"""Speed and memory of mcflow in one run: ``python -m benchmarks [--quick] [--json FILE]``.

Everything that is compared is run alternately in one process on the same requests, and what
must agree is asserted before a number is printed. `docs/decisions.md` holds the choices that
these numbers decided.
"""
