# SPDX-License-Identifier: Apache-2.0
"""The stand-ins for p4c: `p4c-bm2-ss`, the compiler for BMv2, and `p4c`, the driver in front of it.

Both take p4c's options, exit with 0 or 1 and print to stderr, as p4c 1.2.5 does; the JSON that they write is
bmv2_json.py's. The C of the program is compiled as well and kept in the cache, so that a switch of the same user
starts at once. `HANDLED`, `ACCEPTED` and `REFUSED` together name every option that p4c-bm2-ss --help lists.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from softswitch.compiler.p4info_files import FORMATS, written
from softswitch.runtime import files
from softswitch.runtime.version import VERSION

if TYPE_CHECKING:
    from softswitch.compiler.diagnostics import CompileError
    from softswitch.compiler.driver import Program

LIKE = "1.2.5.16"
"""The version of p4c whose options these programs have."""

HANDLED = {
    "--help": "", "--version": "", "-I": "path", "-D": "arg", "-U": "arg", "-E": "", "--nocpp": "",
    "--std": "{p4-14|p4-16}", "--p4v": "{14|16}", "-o": "outfile", "--p4runtime-files": "filelist",
    "--p4runtime-file": "file", "--p4runtime-format": "{binary,json,text}", "--target": "target", "--arch": "arch",
}
"""Options that do what p4c's do, and the name of their argument, if they have one."""

ACCEPTED = {
    "-W": ("flag", "this preprocessor has no warnings"),
    "--Wdisable": ("=", "this compiler has no warnings"), "--Winfo": ("=", "this compiler has no warnings"),
    "--Wwarn": ("=", "this compiler has no warnings"), "--Werror": ("=", "this compiler has no warnings"),
    "--maxErrorCount": ("errorCount", "at most 20 errors are shown"),
    "-T": ("loglevel", "it is for debugging p4c"), "-v": ("", "it is for debugging p4c"),
    "--top4": ("passes", "it is for debugging p4c: nothing is dumped"),
    "--dump": ("folder", "it is for debugging p4c: nothing is dumped"),
    "--parser-inline-opt": ("", "it changes nothing here"), "--doNotEmitIncludes": ("", "it is for debugging p4c"),
    "--ndebug": ("", "it changes nothing here"), "--loopsUnroll": ("", "parsers' loops run as loops here"),
    "-O": ("attached", "programs are always optimised"), "--emit-externs": ("", "the JSON has no externs of its own"),
    "--disable-annotations": ("=", "annotations that are not known change nothing"),
    "--excludeFrontendPasses": ("passes", "it names p4c's passes"),
    "--excludeMidendPasses": ("passes", "it names p4c's passes"),
}
"""Options without effect here: their argument ("=" where it follows an equals sign alone, "attached" where it is part
of the word), and why. Each is named on stderr once, but for the warnings' ones, which many Makefiles have."""

REFUSED = {
    "-M": "", "-MD": "", "-MF": "file", "-MG": "", "-MP": "", "-MT": "target", "-MQ": "target", "--pp": "file",
    "--toJSON": "file", "--fromJSON": "file", "--testJson": "", "--listFrontendPasses": "", "--listMidendPasses": "",
    "--metrics": "metrics", "--p4runtime-entries-files": "files", "--p4runtime-entries-file": "file",
}
"""Options whose output this compiler cannot make, and their argument."""

_SILENT = ("-W", "--Wdisable", "--Winfo", "--Wwarn", "--Werror", "--ndebug", "-O")
_PREDEFINED = {"__TARGET_BMV2__": "1"}


class UsageError(Exception):
    """The command line is wrong. `kind` is p4c's name of the error."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass
class Options:
    """The options of the command line."""

    inputs: list[str] = field(default_factory=list)
    include: list[Path] = field(default_factory=list)
    defines: dict[str, str] = field(default_factory=lambda: dict(_PREDEFINED))
    output: str | None = None
    p4info: list[tuple[str, str]] = field(default_factory=list)  # file, format
    old_p4info: str | None = None
    old_format: str = "binary"
    preprocess_only: bool = False
    info: str | None = None
    """--help or --version, which end the program."""


def p4c_bm2_ss() -> int:
    """The program p4c-bm2-ss."""
    name = "p4c-bm2-ss"
    try:
        options = parse(sys.argv[1:])
        if options.info == "--help":
            return _help(name)
        if options.info == "--version":
            _say(f"{name}\nVersion {LIKE} (softswitch {VERSION})")
            return 0
        if not options.inputs:
            raise UsageError("expected", "No input files specified")
        if len(options.inputs) > 1:
            raise UsageError("overlimit", f"Only one input file must be specified: {','.join(options.inputs)}")
    except UsageError as error:
        _say(f"[--Werror={error.kind}] error: {error}\nUse '--help' to see all available options.")
        return 1
    return compile_program(options)


def p4c() -> int:
    """The program p4c: the output is a folder, and the words of some options differ."""
    import argparse
    import os

    parser = argparse.ArgumentParser("p4c", conflict_handler="resolve", allow_abbrev=True)
    switch, option, many = parser.add_argument, parser.add_argument, parser.add_argument
    switch("-V", "--version", dest="version", action="store_true", help="show version and exit")
    switch("-v", "--debug", dest="debug", action="store_true", help="verbose")
    switch("-###", "--test-only", dest="dry", action="store_true", help="print (but do not run) the command")
    many("-Xpreprocessor", dest="to_compiler", action="append", default=[], help="Pass <arg> to the preprocessor")
    many("-Xp4c", dest="to_compiler", action="append", default=[], help="Pass <arg> to the compiler")
    many("-Xassembler", dest="ignored", action="append", default=[], help="BMv2 has no assembler")
    many("-Xlinker", dest="ignored", action="append", default=[], help="BMv2 has no linker")
    option("-b", "--target", default=os.environ.get("P4C_DEFAULT_TARGET", "bmv2"), help="bmv2 alone")
    option("-a", "--arch", default=os.environ.get("P4C_DEFAULT_ARCH", "v1model"), help="v1model alone")
    switch("-c", "--compile", action="store_true", help="preprocess and compile, the default")
    many("-D", dest="defines", action="append", default=[], help="define a macro")
    many("-U", dest="undefines", action="append", default=[], help="undefine a macro")
    switch("-E", dest="preprocess", action="store_true", help="Only run the preprocessor")
    switch("-e", dest="nocpp", action="store_true", help="Skip the preprocessor")
    switch("-g", dest="debug_info", action="store_true", help="changes nothing here")
    switch("-S", dest="until_assembler", action="store_true", help="as -c")
    many("-I", dest="include", action="append", default=[], help="Add directory to include search path")
    option("-o", "--output", default=".", metavar="PATH", help="folder for what is written")
    option("--p4runtime-file", help="[Deprecated] Write P4Info there")
    option("--p4runtime-files", help="Write P4Info to these files (comma-separated list)")
    option("--p4runtime-format", choices=["binary", "json", "text"], default="binary", help="[Deprecated]")
    switch("--help-targets", "--target-help", "--targets-help", dest="targets", action="store_true")
    option("--disable-annotations", "--disable-annotation", "--disable-pragmas", "--disable-pragma", dest="annotations")
    option("--std", "-x", choices=["p4-14", "p4_14", "p4-16", "p4_16"],
           default=os.environ.get("P4C_DEFAULT_VERSION", "p4-16"), help="P4_16 alone")
    for name in ("--ndebug", "--parser-inline-opt"):
        switch(name, dest="ignored_switch", action="store_true")
    for name in ("--Wdisable", "--Wwarn", "--Werror", "--Winfo"):
        option(name, dest="warnings", nargs="?", action="append", default=[])
    option("-T", dest="levels", action="append", default=[])
    for name in ("--top4", "--dump"):
        option(name, dest="dumps", action="append", default=[])
    for name in ("--toJson", "--fromJson", "--pp"):
        option(name, dest="refused", action="append", default=[], help="not here")
    parser.add_argument("source", nargs="?", help="File to compile")
    given = parser.parse_args()
    if given.version:
        print(f"p4c {LIKE} (softswitch {VERSION})")
        return 0
    if given.targets:
        print('Supported targets in "target, arch" tuple:\nbmv2-v1model')
        return 0
    if given.source is None:
        parser.error("No input specified.")
    if not Path(given.source).is_file():
        _say(f"Input file {given.source} does not exist")
        return 1
    if not given.target.startswith("bmv2") or given.arch not in ("v1model", "ss", "*"):
        parser.error(f"Unknown backend: {given.target}-{given.arch}")
    if given.refused:
        parser.error("--toJson, --fromJson and --pp: this compiler has no form of p4c's intermediate representation")
    base = Path(given.output) / Path(given.source).stem
    command = [*given.to_compiler, *(f"-D{d}" for d in given.defines), *(f"-U{d}" for d in given.undefines)]
    for path in given.include:
        command += ["-I", path]
    if given.p4runtime_files:
        command += ["--p4runtime-files", given.p4runtime_files]
    if given.p4runtime_file:
        command += ["--p4runtime-file", given.p4runtime_file, "--p4runtime-format", given.p4runtime_format]
    command += ["--std", given.std.replace("_", "-"), "--arch", given.arch, "-o", f"{base}.json", given.source]
    if given.nocpp:
        command.append("--nocpp")
    if given.dry or given.debug:
        print("compiler:\np4c-bm2-ss", *command, flush=True)
        if given.dry:
            return 0
    try:
        options = parse(command)
        Path(given.output).mkdir(parents=True, exist_ok=True)
    except UsageError as error:
        parser.error(str(error))
    except OSError as error:
        _say(f"p4c: {error.filename}: {error.strerror}; expected a folder for what is written")
        return 1
    return compile_program(options, keep_preprocessed=Path(f"{base}.p4i"), only_preprocess=given.preprocess)


def parse(arguments: Sequence[str]) -> Options:
    """Reads a command line of p4c-bm2-ss. Raises UsageError."""
    options = Options()
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            options.inputs.append(word)
            continue
        name, value, wants = _split(word)
        if wants is None:
            raise UsageError("unknown", f"Unknown option {word}")
        if wants and wants not in ("=", "attached") and value is None:
            if not rest:
                raise UsageError("expected", f"Option {name} is missing required argument {wants}")
            value = rest.pop(0)
        _apply(options, name, value or "")
    if options.old_p4info is not None:
        _say("[--Wwarn=deprecated] warning: '--p4runtime-file' and '--p4runtime-format' are deprecated, consider using "
             "'--p4runtime-files' instead")
        options.p4info.append((options.old_p4info, options.old_format))
    return options


def _split(word: str) -> tuple[str, str | None, str | None]:
    """An option's name, the value in the same word, and what its argument is called, "" for none; None: unknown."""
    known = {**HANDLED, **{name: wants for name, (wants, _) in ACCEPTED.items()}, **REFUSED}
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        return name, value if equals else None, known.get(name)
    if word in known:
        return word, None, known[word]
    name, value = word[:2], word[2:].removeprefix("=")
    return name, value, known.get(name) or None


def _apply(options: Options, name: str, value: str) -> None:
    """Carries out one option. Raises UsageError."""
    if name in REFUSED:
        raise UsageError("unsupported", f"Option {name}: this compiler (softswitch, not p4c) cannot write that; "
                                        "expected a command line without it")
    if name in ACCEPTED:
        if name not in _SILENT:
            _say(f"[--Winfo=ignored] info: option {name} is ignored: {ACCEPTED[name][1]}")
        return
    match name:
        case "--help" | "--version":
            options.info = name
        case "-I":
            options.include.append(Path(value))
        case "-D":
            macro, equals, meaning = value.partition("=")
            options.defines[macro] = meaning if equals else "1"
        case "-U":
            options.defines.pop(value, None)
        case "-E":
            options.preprocess_only = True
        case "--std" | "--p4v":
            if value not in ("p4-16", "16"):
                raise UsageError("invalid", f"Illegal language version {value}: this compiler knows P4_16 alone")
        case "-o":
            options.output = value
        case "--p4runtime-files":
            options.p4info += [_by_suffix(file) for file in value.split(",")]
        case "--p4runtime-file":
            options.old_p4info = value
        case "--p4runtime-format":
            if value not in ("binary", "json", "text"):
                raise UsageError("invalid", f"Illegal P4Runtime format {value}")
            options.old_format = value
        case _:  # --target, --arch: p4c-bm2-ss ignores them too; --nocpp: preprocessed text has nothing to expand
            pass


def _by_suffix(file: str) -> tuple[str, str]:
    if Path(file).suffix not in FORMATS:
        raise UsageError("unknown", f"{file}: unknown file kind; known suffixes are .bin, .txt, .json, and .txtpb")
    if file.endswith(".txt"):
        _say("[--Wwarn=deprecated] warning: .txt format is being deprecated; use .txtpb instead")
    return file, FORMATS[Path(file).suffix]


def compile_program(options: Options, *, keep_preprocessed: Path | None = None, only_preprocess: bool = False) -> int:
    """Compiles as the options say, and returns the exit status.

    keep_preprocessed  where the preprocessed text goes, as p4c's driver leaves it beside the JSON
    only_preprocess    whether that is all
    """
    from softswitch.compiler.diagnostics import CompileError
    from softswitch.compiler.driver import compile_source
    from softswitch.compiler.preprocess import preprocess, read
    from softswitch.engine.errors import EngineError

    source = Path(options.inputs[0])
    try:
        text = read(source)
        expanded = preprocess(text, str(source), include=options.include, defines=options.defines)
        if options.preprocess_only:
            sys.stdout.write(expanded)
            return 0
        if keep_preprocessed is not None:
            files.replace(keep_preprocessed, expanded)
        if only_preprocess:
            return 0
        program = compile_source(text, str(source), include=options.include, defines=options.defines)
        for file, form in options.p4info:
            files.replace(file, written(program.p4info, form))
        if options.output is not None:
            files.replace(options.output, program.bmv2_json)
            _warm(program)
    except CompileError as error:
        _report(error)
        return 1
    except EngineError as error:
        _say(f"[--Werror=softswitch] error: the program cannot be built: {error}")
        return 1
    except OSError as error:
        _say(f'[--Werror=I/O error] error: Error writing output to file "{error.filename}": {error.strerror}')
        return 1
    return 0


def _warm(program: Program) -> None:
    """Builds the program for the switch. Raises EngineError."""
    from softswitch.p4runtime.program import Compiler, begin

    begin()
    Compiler().keep(program.bmv2_json.encode(), program)


def _report(error: CompileError) -> None:
    """Prints errors in p4c's form: file(line): [--Werror=...] error: ..., the line, and a mark below it."""
    for diagnostic in error.diagnostics:
        pos = diagnostic.pos
        _say(f"{pos.file}({pos.line}): [--Werror=error] error: {diagnostic.message}")
        if pos.text:
            pad = "".join("\t" if c == "\t" else " " for c in pos.text[: pos.col - 1])
            _say(f"{pos.text}\n{pad}{'^' * max(1, min(pos.length, len(pos.text) - pos.col + 1))}")
    _say(f"[--Werror=overlimit] error: {len(error.diagnostics)} errors encountered, aborting compilation")


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _help(name: str) -> int:
    _say(f"{name}: Compile a P4 program (softswitch {VERSION}, with the options of p4c {LIKE})")
    for option, argument in HANDLED.items():
        _say(f"{option} {argument}".rstrip())
    _say("Accepted, without effect here:")
    for option, (_, why) in ACCEPTED.items():
        _say(f"{option:39} {why}")
    _say(f"Refused: {' '.join(REFUSED)}")
    return 0
