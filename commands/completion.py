"""`tf_cnn_benchmarks.py completion`: prints a script with which a shell completes flags and values. Without TensorFlow.

Libraries for this, such as argcomplete, start the program at each press of the key and need a parser of their own kind.
"""

import importlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from commands.options import Arguments, Declaration, Positional
from commands.subcommands import SUBCOMMANDS
from errors import UsageError, nearest
from models.registry import MODELS
from params.all_reduce_spec import ALGORITHMS
from params.original import TABLE
from params.spec import FlagSpec, specs_of
from params.table import SPECS
from sweeps.sweep_file import shipped

PROGRAM = 'tf_cnn_benchmarks'
SHELLS = ('bash', 'zsh', 'fish')
# Flags that look like switches, but ask the program to print something and end.
QUESTIONS: Mapping[str, FlagSpec] = {
    'help': FlagSpec('help', bool, help='Print all flags; with =FLAG, all about one.'),
    'version': FlagSpec('version', bool, help='Print the version.'),
}
_NAMES = (PROGRAM, f'{PROGRAM}.py')
_FUNCTION = f'_{PROGRAM}'


@dataclass(frozen=True)
class CompletionOptions:
    """The subcommand has no flags."""


DECLARATION = Declaration(
    'completion',
    CompletionOptions,
    f'Prints a script with which a shell completes subcommands, flags and their values: for {", ".join(SHELLS)}. The '
    'line to put into its start-up file is in the first lines of the script.',
    examples=SHELLS,
    positional=Positional('SHELL', f'One of {", ".join(SHELLS)}.'),
)
# It is not in the table of flags, since absl reads the file.
_FLAGFILE = FlagSpec('flagfile', str, help='File with flags, one on each line.')


def main(argv: Sequence[str]) -> int:
    """Runs `completion` with the arguments in argv; returns the exit code.

    Raises:
      UsageError: an argument is wrong, or there is no script for the shell.
    """
    return DECLARATION.run(argv, _print)


def _print(arguments: Arguments[CompletionOptions]) -> int:
    (shell,) = arguments.positional
    if shell not in SHELLS:
        near = nearest(shell, SHELLS)
        hint = f'did you mean {near}?' if near else f'write one of {", ".join(SHELLS)}'
        raise UsageError(f'{shell}: there is no script for this shell; {hint}')
    make_script = {'bash': for_bash, 'zsh': for_zsh, 'fish': for_fish}[shell]
    print(make_script(_words_of_run(), _words_of_subcommands()), end='')
    return 0


@dataclass(frozen=True)
class CompletionWords:
    """The words that may follow the program's name, or the name of a subcommand.

    Attributes:
      purpose: what the subcommand does; empty for a run.
      flags: its flags by name.
      values: values to offer for some of the flags, besides their choices.
      arguments: words to offer as an argument that is not a flag.
      takes_files: whether to offer files too.
      passes_on: whether flags of a run may follow after --.
    """

    purpose: str
    flags: Mapping[str, FlagSpec]
    values: Mapping[str, Sequence[str]]
    arguments: Sequence[str] = ()
    takes_files: bool = False
    passes_on: bool = False

    def values_of(self, spec: FlagSpec) -> Sequence[str]:
        """The values to offer for a flag; empty for numbers and for paths."""
        return self.values.get(spec.name) or spec.choices or (('true', 'false') if spec.type is bool else ())


def _words_of_run() -> CompletionWords:
    values = {'model': MODELS.list_models(), 'all_reduce_spec': tuple(ALGORITHMS)}
    return CompletionWords('', {**QUESTIONS, _FLAGFILE.name: _FLAGFILE, **SPECS}, values)


def _words_of_subcommands() -> Mapping[str, CompletionWords]:
    arguments = {
        'completion': SHELLS,
        'help': ('all', *SPECS, *(name for name in TABLE if name not in SPECS), *SUBCOMMANDS),
        'models': MODELS.list_models(),
        'sweep': tuple(shipped()),
    }
    declarations = {name: importlib.import_module(f'commands.{name}').DECLARATION for name in SUBCOMMANDS}
    return {
        name: CompletionWords(
            SUBCOMMANDS[name].purpose,
            {'help': QUESTIONS['help'], **specs_of(declaration.options)},
            {},
            arguments.get(name, ()),
            takes_files=declaration.positional is not None and declaration.positional.is_path,
            passes_on=declaration.rest is not None,
        )
        for name, declaration in declarations.items()
    }


# ---- bash -----------------------------------------------------------------------------------------------------------

_BASH = r"""# Completion for bash 4 and later: eval "$(tf_cnn_benchmarks completion bash)"
_tf_cnn_benchmarks() {
    local current=${COMP_WORDS[COMP_CWORD]} previous='' flag='' prefix='' spaced='' command='' index
    local flags='' switches='' negated='' values='' arguments='' takes_files='' argument_files='' offers_files=''
    local subcommands=@SUBCOMMANDS@ pass_on=@PASS_ON@
    (( COMP_CWORD > 0 )) && previous=${COMP_WORDS[COMP_CWORD - 1]}
    (( COMP_CWORD > 1 )) && [[ " $subcommands " == *" ${COMP_WORDS[1]} "* ]] && command=${COMP_WORDS[1]}
    # What follows -- are flags of a run.
    for (( index = 2; index < COMP_CWORD; index++ )); do
        [[ ${COMP_WORDS[index]} == -- && " $pass_on " == *" $command "* ]] && command=''
    done
    # Bash splits --flag=value at the equal sign, unless COMP_WORDBREAKS has none.
    if [[ $current == '=' ]]; then
        flag=$previous current=''
    elif [[ $previous == '=' ]]; then
        flag=${COMP_WORDS[COMP_CWORD - 2]}
    elif [[ $current == --*=* ]]; then
        flag=${current%%=*} prefix=${current%%=*}= current=${current#*=}
    elif [[ $previous == --?* && $current != -* ]]; then
        flag=$previous spaced=1
    fi
    case $command in
@COMMANDS@
    esac
    # The value of a switch follows an equal sign.
    [[ $spaced && " $switches " == *" $flag "* ]] && flag=''
    COMPREPLY=()
    if [[ $flag ]]; then
        offers_files=$takes_files
        [[ " $switches " == *" $flag "* ]] && values='true false'
    elif [[ $current == -* ]]; then
        values="$flags $switches"
        [[ $current == --no* ]] && values+=" $negated"
    elif [[ $command ]]; then
        values=$arguments offers_files=$argument_files
    elif (( COMP_CWORD == 1 )); then
        values=$subcommands
    fi
    if [[ $offers_files ]]; then
        mapfile -t COMPREPLY < <(compgen -f -W "$values" -P "$prefix" -- "$current")
        compopt -o filenames 2> /dev/null
    elif [[ $values ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$values" -P "$prefix" -- "$current")
        # Its value follows at once.
        [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2> /dev/null
    fi
    return 0
}
complete -F _tf_cnn_benchmarks @NAMES@
"""


def for_bash(run: CompletionWords, subcommands: Mapping[str, CompletionWords]) -> str:
    """The script for bash. It needs no other package, such as bash-completion."""
    return _filled(
        _BASH,
        NAMES=' '.join(_NAMES),
        SUBCOMMANDS=shlex.quote(' '.join(subcommands)),
        PASS_ON=shlex.quote(' '.join(name for name, words in subcommands.items() if words.passes_on)),
        COMMANDS='\n'.join(_bash_case(name, words) for name, words in {'': run, **subcommands}.items()),
    )


def _bash_case(name: str, words: CompletionWords) -> str:
    specs = words.flags.values()
    lines = [f'    {shlex.quote(name)})']
    for variable, flags in (
        ('flags', [f'--{spec.name}=' for spec in specs if spec.type is not bool]),
        ('switches', [f'--{spec.name}' for spec in specs if spec.type is bool]),
        ('negated', [f'--no{spec.name}' for spec in specs if _has_negation(spec)]),
        ('arguments', words.arguments),
    ):
        if flags:
            lines.append(f'        {variable}={shlex.quote(" ".join(flags))}')
    if words.takes_files:
        lines.append('        argument_files=1')
    lines.append('        case $flag in')
    for spec in specs:
        if spec.type is not bool and (values := words.values_of(spec)):
            lines.append(f'        --{spec.name}) values={shlex.quote(" ".join(values))} ;;')
    paths = [f'--{spec.name}' for spec in specs if spec.is_path]
    if paths:
        lines.append(f'        {"|".join(paths)}) takes_files=1 ;;')
    return '\n'.join([*lines, '        esac', '        ;;'])


# ---- zsh ------------------------------------------------------------------------------------------------------------

_ZSH = r"""#compdef @NAMES@
# Completion for zsh, after compinit: eval "$(tf_cnn_benchmarks completion zsh)"
_tf_cnn_benchmarks() {
    local -a subcommands
    subcommands=(
@SUBCOMMANDS@
    )
    local name=$words[2]
    # What follows -- are flags of a run.
    local separator=$words[(i)--]
    if [[ $name == (@PASS_ON@) ]] && (( separator < CURRENT )); then
        name=
        words=($words[1] "${(@)words[separator + 1, -1]}")
        (( CURRENT -= separator - 1 ))
    elif (( CURRENT == 2 )) && [[ $PREFIX != -* ]]; then
        _describe subcommand subcommands
        return
    elif (( ${subcommands[(I)$name:*]} )); then
        shift words
        (( CURRENT -= 1 ))
    else
        name=
    fi
    case $name in
@COMMANDS@
    esac
}
if [[ $funcstack[1] == _tf_cnn_benchmarks ]]; then
    _tf_cnn_benchmarks "$@"
else
    compdef _tf_cnn_benchmarks @NAMES@
fi
"""


def for_zsh(run: CompletionWords, subcommands: Mapping[str, CompletionWords]) -> str:
    """The script for zsh, to evaluate, or to save as _tf_cnn_benchmarks in a folder of fpath."""
    return _filled(
        _ZSH,
        NAMES=' '.join(_NAMES),
        SUBCOMMANDS='\n'.join(
            f'        {shlex.quote(f"{name}:{words.purpose}")}' for name, words in subcommands.items()
        ),
        PASS_ON='|'.join(name for name, words in subcommands.items() if words.passes_on),
        COMMANDS='\n'.join(_zsh_case(name, words) for name, words in {**subcommands, '': run}.items()),
    )


def _zsh_case(name: str, words: CompletionWords) -> str:
    specs = []
    for spec in words.flags.values():
        # A bracket would end the description.
        about = _first_sentence(spec.help).replace('[', '(').replace(']', ')')
        if spec.type is bool:
            specs += [f'{flag}[{about}]' for flag in _switches_of(spec)]
        elif values := words.values_of(spec):
            specs.append(f'--{spec.name}=[{about}]:value:({" ".join(values)})')
        else:
            specs.append(f'--{spec.name}=[{about}]:value:{"_files" if spec.is_path else ""}')
    if name:
        listed = ' '.join(words.arguments)
        files = f'{{compadd -- {listed}; _files}}' if listed else '_files'
        specs.append(f'*:argument:{files if words.takes_files else f"({listed})"}')
    quoted = [f' \\\n            {shlex.quote(spec)}' for spec in specs]
    return f'    {shlex.quote(name)})\n        _arguments{"".join(quoted)}\n        ;;'


# ---- fish -----------------------------------------------------------------------------------------------------------


def for_fish(run: CompletionWords, subcommands: Mapping[str, CompletionWords]) -> str:
    """The script for fish."""
    lines = ['# Completion for fish: tf_cnn_benchmarks completion fish | source']
    for program in _NAMES:
        names = ' '.join(subcommands)
        lines += [
            _fish(program, '__fish_use_subcommand', f'-f -a {name} -d {_fish_quoted(words.purpose)}')
            for name, words in subcommands.items()
        ]
        for name, words in {'': run, **subcommands}.items():
            condition = f'__fish_seen_subcommand_from {name}' if name else f'not __fish_seen_subcommand_from {names}'
            lines += [
                _fish(program, condition, part) for spec in words.flags.values() for part in _fish_flag(words, spec)
            ]
            if name and not words.takes_files:
                lines.append(_fish(program, condition, '-f'))
            if words.arguments:
                lines.append(_fish(program, condition, f'-a {_fish_quoted(" ".join(words.arguments))}'))
    return '\n'.join(lines) + '\n'


def _fish(program: str, condition: str, rest: str) -> str:
    return f"complete -c {program} -n '{condition}' {rest}"


def _fish_flag(words: CompletionWords, spec: FlagSpec) -> list[str]:
    about = f'-d {_fish_quoted(_first_sentence(spec.help))}'
    if spec.type is bool:
        return [f'-l {flag.lstrip("-")} {about}' for flag in _switches_of(spec)]
    if values := words.values_of(spec):
        return [f'-l {spec.name} -x -a {_fish_quoted(" ".join(values))} {about}']
    return [f'-l {spec.name} {"-r -F" if spec.is_path else "-x"} {about}']


def _fish_quoted(text: str) -> str:
    escaped = text.replace('\\', '\\\\').replace("'", "\\'")
    return f"'{escaped}'"


# ---- all ------------------------------------------------------------------------------------------------------------


def _has_negation(spec: FlagSpec) -> bool:
    """Whether the flag is a switch that --noNAME turns off; the QUESTIONS are not."""
    return spec.type is bool and spec.name not in QUESTIONS


def _switches_of(spec: FlagSpec) -> list[str]:
    return [f'--{spec.name}', *([f'--no{spec.name}'] if _has_negation(spec) else [])]


def _first_sentence(text: str) -> str:
    return text.partition('. ')[0].rstrip('.')


def _filled(template: str, **parts: str) -> str:
    for name, text in parts.items():
        template = template.replace(f'@{name}@', text)
    return template
