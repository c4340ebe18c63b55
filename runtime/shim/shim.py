"""The program of a shim. It is run by its path, with `-I -S`, so that nothing but the standard library is loaded."""

import sys

if __name__ == "__main__":
    # The folder that holds the package `runtime`, last, so that it shadows nothing
    sys.path.append(__file__.rsplit("/", 3)[0])

    from runtime.shim.loop import main

    main(sys.argv[1:])
