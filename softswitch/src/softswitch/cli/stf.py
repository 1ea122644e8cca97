# SPDX-License-Identifier: Apache-2.0
"""softswitch stf: packet tests in p4c's format."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from softswitch.cli.options import CliArgument, Defines, Includes, Program, defines, fail, p4_text, readable, refuse


def stf(
    program: Program,
    test: Annotated[Path, CliArgument(metavar="TEST.stf", help="A packet test in p4c's format.")],
    define: Defines = None,
    include: Includes = None,
) -> None:
    """Run a packet test; exit status 0 where every expectation holds and no other frame came out."""
    from softswitch.compiler.diagnostics import CompileError
    from softswitch.stf import runner
    from softswitch.stf.script import StfSyntaxError

    p4_text(program)
    readable(test)
    try:
        report = runner.run(program, test, include=include or [], defines=defines(define))
    except CompileError as error:
        refuse(error)
    except StfSyntaxError as error:
        fail(str(error))
    except UnicodeDecodeError:
        fail(f"{test}: expected a packet test in UTF-8 text")
    except OSError as error:  # a file without end, say
        fail(f"{error.filename}: {error.strerror}")
    print(report)
    if not report.passed:
        sys.exit(1)
