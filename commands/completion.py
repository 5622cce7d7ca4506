"""`tf_cnn_benchmarks.py completion`: prints a script with which bash completes flags and values. Without TensorFlow.

Libraries for this, such as argcomplete, start the program at each press of the key and need a parser of their own kind.
"""

import importlib
import itertools
import shlex
from collections.abc import Mapping, Sequence

from commands.options import Arguments, Declaration, NoOptions
from commands.subcommands import SUBCOMMANDS
from errors import UsageError
from models.registry import MODELS
from params.all_reduce_spec import ALGORITHMS
from params.original import TABLE
from params.spec import FlagSpec, specs_of
from params.table import SPECS
from sweeps.sweep_file import shipped

_SCRIPT = r"""# For bash 4 and later: eval "$(tf_cnn_benchmarks completion bash)"; zsh needs bashcompinit first.
declare -A _tf_cnn_words=(@WORDS@)
declare -A _tf_cnn_values=(@VALUES@)
_tf_cnn_benchmarks() {
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} flag='' command=run
    [[ $COMP_CWORD -gt 1 && ${_tf_cnn_words[${COMP_WORDS[1]:-run}]+known} ]] && command=${COMP_WORDS[1]}
    # What follows -- are flags of a run.
    [[ " ${COMP_WORDS[*]:1:COMP_CWORD-1} " == *' -- '* ]] && command=run
    # Bash splits --flag=value at the equal sign.
    [[ $current == '=' ]] && flag=$previous current=''
    [[ $previous == '=' ]] && flag=${COMP_WORDS[COMP_CWORD - 2]}
    local words=${_tf_cnn_words[$command]}
    [[ $command == run && $COMP_CWORD -eq 1 ]] && words+=" ${!_tf_cnn_words[*]}"
    [[ $flag ]] && words=${_tf_cnn_values[$flag]-}
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
    [[ $current != -* ]] || [[ ${COMPREPLY[0]-} != *= ]] || compopt -o nospace 2> /dev/null
    return 0
}
complete -o default -F _tf_cnn_benchmarks tf_cnn_benchmarks tf_cnn_benchmarks.py
"""


DECLARATION = Declaration(
    'completion',
    NoOptions,
    examples=('bash',),
    details='The line to put into the start-up file of bash is the first one of the script.',
    positional='bash.',
)


@DECLARATION.main
def main(arguments: Arguments[NoOptions]) -> int:
    (shell,) = arguments.positional
    if shell != 'bash':
        raise UsageError(f'{shell}: there is no script for this shell; write bash, which zsh reads after bashcompinit')
    specs = {name: specs_of(importlib.import_module(f'commands.{name}').DECLARATION.options) for name in SUBCOMMANDS}
    arguments_of = {
        'help': ('all', *{**SPECS, **TABLE}, *SUBCOMMANDS),
        'models': MODELS.list_models(),
        'sweep': tuple(shipped()),
        'completion': ('bash',),
    }
    words = {name: [*_flags(of), '--help', *arguments_of.get(name, ())] for name, of in specs.items()}
    words['run'] = [*_flags(SPECS), '--help', '--version', '--flagfile=']
    values: dict[str, Sequence[str]] = {
        f'--{spec.name}': ('true', 'false') if spec.type is bool else spec.choices or ()
        for of in (*specs.values(), SPECS)
        for spec in of.values()
    }
    values |= {'--model': MODELS.list_models(), '--all_reduce_spec': tuple(ALGORITHMS)}
    print(_SCRIPT.replace('@WORDS@', _array(words)).replace('@VALUES@', _array(values)), end='')
    return 0


def _flags(specs: Mapping[str, FlagSpec]) -> list[str]:
    forms = ((f'--{name}', f'--no{name}') if spec.type is bool else (f'--{name}=',) for name, spec in specs.items())
    return [*itertools.chain.from_iterable(forms)]


def _array(entries: Mapping[str, Sequence[str]]) -> str:
    return ' '.join(f'[{name}]={shlex.quote(" ".join(words))}' for name, words in entries.items() if words)
