"""Started as `python -I -S launcher.py SPEC`: confines itself, then becomes the interpreter that
runs the program on its standard input.

The first line of the input is a secret, printed when the program has run to its end: that alone
means that it passed. An exit code would not do, since the program may end itself with 0.
"""

import json
import os
import sys

RUN = """
import sys
secret = sys.stdin.readline()
source = sys.stdin.read()
exec(compile(source, "program.py", "exec"), {"__name__": "program"})
sys.stdout = sys.__stdout__
print("\\n" + secret, flush=True)
"""


def main() -> None:
    """Confine this process by the JSON in its first argument, and run."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    import kernel  # type: ignore[import-not-found]

    spec = json.loads(sys.argv[1])
    try:
        kernel.confine(spec["readable"], spec["executable"], spec["memory"], spec["seconds"])
    except (kernel.CannotConfine, OSError) as error:
        print(spec["refusal"])  # which the program never sees, so none can claim it
        sys.exit(str(error))
    interpreter = spec["interpreter"]
    os.execve(interpreter, [interpreter, "-I", "-S", "-B", "-c", RUN], spec["environment"])


if __name__ == "__main__":
    main()
