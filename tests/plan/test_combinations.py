"""The program answers random combinations of flags: with a plan that has them, or with lines that
name them.

python -m pytest tests/plan/test_combinations.py --combinations=100000 --combinations_seed=1
"""

import contextlib
import math
import os
import random
import re
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import tf_cnn_benchmarks
from tests.support.images import write_noise
from tests.support.machines import open_mpi, slurm_step, tf_config
from tf_cnn.cluster.environments import is_evaluator
from tf_cnn.flags.command_line import split_command_line
from tf_cnn.flags.spec import FlagSpec
from tf_cnn.machine.this_process import ProcessEnvironment
from tf_cnn.plan.original_flags import FLAGS, TABLE, Status
from tf_cnn.plan.params import SPECS, Params
from tf_cnn.plan.parsing import ParsedFlags, parse_argv
from tf_cnn.plan.plan import Plan, ServerPlan, make_plan
from tf_cnn.system.errors import BenchmarkError, UsageError, format_error

pytestmark = [pytest.mark.graph, pytest.mark.long]

# ---- words of command lines: correct, wrong and odd ----------------------------------------------

# Values of flags that need a special form, and paths.
_TEXTS = {
    'model': 'trivial lenet resnet20 resnet50 mobilenet',
    'all_reduce_spec': 'pscpu psgpu#2 xring pscpu:32k:xring nccl nccl/xring collective pscpu:2',
    'gpu_indices': '0 0,1 1,1 -1 a',
    'profile_steps': '1,2 2,2 3,900 2,1 1',
    'piecewise_learning_rate_schedule': '0.3;10;0.2 0.1 1;2 0.1;20;0.2;10;0.3',
    'eval_during_training_at_specified_steps': '1,3 0 1,,2',
    'eval_during_training_at_specified_epochs': '0.5,1 -1',
    'rewriter_config': 'remapping:OFF remapping:7 {',
    'server_protocol': 'grpc grpc+verbs',
    'ps_hosts': '127.0.0.1:2222 127.0.0.1:2222,127.0.0.1:2223 , a host:99999',
    'worker_hosts': '127.0.0.1:3222 127.0.0.1:3222,127.0.0.1:3223 127.0.0.1:2222 :1 a:b',
    'controller_host': '127.0.0.1:4222 127.0.0.1:4222,127.0.0.1:4223',
    'result_file': '- {model}-{batch_size}-{time}.json {nonsense}.json result.json',
    'input_preprocessor': 'default test_preprocessor',
    **dict.fromkeys(
        ('data_dir', 'model_file', 'backbone_model_path'), 'folder file /no/such ~/none caf\udce9'
    ),
}
_PATHS = 'out out/deeper/path folder folder/new file /dev/null/x ~/out ~nobody/x a*b .'
# Values that nearly all flags refuse.
_ODD = (
    '\'\' "" nan inf -inf 1e999 -1 0x10 99999999999999999999 1.5 ٣ ½ +1 None ü 日本 \x7f - -- = '
    '--x=y %s{} \' "'
)
_ODD_TEXTS = ('', ' ', 'a\nb', 'a\x1b[2Jb', '\u2028', 'x' * 5000)
# Words that are not flags of the program.
_STRANGE = (
    '- -- --- --= --=3 -= stray 64 --bogus --bogus=3 -x --no --nono --nobatch_size --batch-size=3 '
    '--Batch_Size=3 --batchsize=2 --batch_size --flagfile=/no/such --flagfile --flagfile= '
    '--flagfile=file --undefok=bogus --undefok --model --ünïcode=1'
)
STRANGE = [*_STRANGE.split(), '', '--bogus 3', '--a\nb=1']


def wrong_words() -> list[str]:
    """Returns flags with values of another type, out of bounds, or odd; some flags accept them."""
    words = [*STRANGE]
    for spec in FLAGS.values():
        words += (f'--{spec.name}={value}' for value in (*_ODD.split(), *_ODD_TEXTS))
        if spec.type is bool:
            words += (f'--no{spec.name}=1', f'--{spec.name}=maybe', f'-no{spec.name}')
        for bound, step in ((spec.lower_bound, -1), (spec.upper_bound, 1)):
            if math.isfinite(bound):
                words.append(f'--{spec.name}={int(bound + step)}')
    return words


def _right(spec: FlagSpec) -> Iterator[str]:
    if spec.type is bool:
        # XLA stays off, since the plan tries it out, which takes time.
        name, is_xla = spec.name, spec.name.startswith('xla')
        yield from (f'--no{name}', f'--{name}=f')
        yield from () if is_xla else (f'--{name}', f'--{name}=True')
    elif spec.choices:
        yield from (f'--{spec.name}={choice}' for choice in spec.choices)
    elif spec.type is str:
        yield from (f'--{spec.name}={text}' for text in _TEXTS.get(spec.name, _PATHS).split())
    else:
        low = max(spec.lower_bound, 0)
        high = spec.upper_bound if math.isfinite(spec.upper_bound) else low + 3
        kind = spec.type
        values = {kind(low), kind(low + 1), kind(high)}
        if kind is float:
            values = {low, (low + high) / 2, high}
        yield from (f'--{spec.name}={value}' for value in sorted(values))
    if spec.default is not None:
        yield f'--{spec.name}={spec.default}'


_TASKS = {'worker': ['127.0.0.1:5222', '127.0.0.1:5223'], 'ps': ['127.0.0.1:5224']}
# Environments of a process, correct and malformed.
ENVIRONMENTS: tuple[dict[str, str], ...] = (
    *(tf_config(job, 0, **_TASKS) for job in ('worker', 'ps', 'evaluator', 'nonsense')),
    tf_config('worker', 7, **_TASKS),
    *(
        {'TF_CONFIG': text}
        for text in ('', '{}', '[]', 'null', '3', '{"cluster":', 'x', '\x00', '[' * 10_000)
    ),
    *(
        {'TF_CONFIG': f'{{"cluster": {tasks}}}'}
        for tasks in ('{}', '{"worker": "x"}', '{"worker": [3]}')
    ),
    *(slurm_step(rank) for rank in (0, 1)),
    *(slurm_step(1, SLURM_PROCID=text) for text in ('', 'x', '-1', '99')),
    *(slurm_step(1, SLURM_STEP_NODELIST=text) for text in ('', 'a[', 'a[1-999999999]', 'a[1-3]')),
    *(slurm_step(1, SLURM_STEP_TASKS_PER_NODE=text) for text in ('', '1', '9(x9)', 'x')),
    *(open_mpi(rank, 3, 3) for rank in (0, 1)),
    *(open_mpi(1, 3, 3, OMPI_COMM_WORLD_RANK=text) for text in ('', 'x', '-1', '9')),
    *(open_mpi(1, 3, 3, OMPI_COMM_WORLD_SIZE=text) for text in ('', 'x', '0', '1')),
    {'CUDA_VISIBLE_DEVICES': '0,0'},
    {'KMP_BLOCKTIME': '7', 'TF_GPU_THREAD_MODE': 'global'},
)


# ---- the answers ---------------------------------------------------------------------------------

# Every answer is faster.
LIMIT_SECS = 5.0
RIGHT = [word for spec in FLAGS.values() for word in _right(spec)]
WRONG = wrong_words()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yields a new working directory, which is the home directory, too."""
    (tmp_path / 'folder').mkdir()
    (tmp_path / 'file').write_text('--batch_size=2\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('HOME', str(tmp_path))
    write_noise(tmp_path / 'folder', 10)
    handler = signal.signal(signal.SIGPROF, lambda *_: pytest.fail('it hangs'))
    yield tmp_path
    signal.signal(signal.SIGPROF, handler)


def test_every_combination_is_answered(place, request):
    # A draw takes as long as an answer, so each draw makes four combinations.
    draws = st.tuples(
        st.one_of(
            st.lists(st.sampled_from(RIGHT), min_size=2, max_size=12),
            st.lists(st.sampled_from([*RIGHT, *WRONG]), min_size=2, max_size=8),
            st.lists(
                st.sampled_from(WRONG)
                | st.text(max_size=12).map(lambda text: text.replace('\0', '')),
                max_size=5,
            ),
        ),
        st.one_of(st.just({}), st.sampled_from(ENVIRONMENTS)),
    )
    parts = 4
    number = request.config.getoption('--combinations')
    answers: Counter[str] = Counter()

    @seed(request.config.getoption('--combinations_seed'))
    @settings(
        max_examples=number // parts,
        derandomize=False,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(draws)
    def answer(draw: tuple[list[str], dict[str, str]]) -> None:
        words, environ = draw
        for argv, around in (
            (words, environ),
            ([*words[::3], '--device=cpu'], environ),
            ([*words[1::3], '--device=cpu'], {}),
            (words[2::3], {}),
        ):
            try:
                with _restored_process():
                    parsed = parse_argv(argv)
                    plan = make_plan(parsed.params, ProcessEnvironment(around))
            except BenchmarkError as error:
                _check_refusal(error.lines, argv, around)
                answers['refused' if isinstance(error, UsageError) else 'failed'] += 1
            else:
                _check_nothing_changed(argv, parsed, plan, around)
                answers['plan' if isinstance(plan, Plan) else 'server'] += 1

    answer()
    print(f'{answers.total()} combinations: {dict(answers)}')
    # The words must lead to plans and refusals alike.
    assert min(answers['plan'], answers['refused']) >= number / 20, answers


@contextlib.contextmanager
def _restored_process(limit_secs: float = LIMIT_SECS) -> Iterator[None]:
    """Fails if the block takes too much processor time; restores the environment variables."""
    before = dict(os.environ)
    signal.setitimer(signal.ITIMER_PROF, limit_secs)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        if os.environ != before:
            os.environ.clear()
            os.environ.update(before)


def _check_refusal(lines: Sequence[str], argv: Sequence[str], environ: Mapping[str, str]) -> None:
    assert lines
    written = [word.partition('=')[0] for word in argv]
    bare = [word.lstrip('-') for word in written]
    names = {*bare, *(name.removeprefix('no') for name in bare), 'ps_hosts', 'worker_hosts'} - {''}
    flags = re.compile('|'.join(rf'--(no)?{re.escape(name)}(?!\w)' for name in names))
    other_facts = [*environ, *(repr(word) for word in argv), *argv, 'Slurm', 'Open MPI']
    for line in lines:
        printed = format_error(line)
        assert printed.isprintable()
        assert flags.search(line) or any(fact in line + printed for fact in other_facts), line


def _check_nothing_changed(
    argv: Sequence[str], parsed: ParsedFlags, plan: Plan | ServerPlan, environ: Mapping[str, str]
) -> None:
    """Each flag has its value in the settings and in the plan, or a warning names it."""
    warnings = '\n'.join([*parsed.warnings, *plan.warnings])
    everything: list[Params] = [parsed.params]
    if isinstance(plan, Plan) and not is_evaluator(environ):
        everything.append(plan.unresolved)
    texts = split_command_line(argv, FLAGS, '').texts
    for name, text in texts.items():
        value = FLAGS[name].read(text)
        # --num_gpus=0 is one device of the CPU.
        if re.search(rf'--(no)?{name}(?!\w)', warnings) or (name, value) == ('num_gpus', 0):
            continue
        if name in SPECS:
            for params in everything:
                assert params.value(name) == value, (name, text)
        elif TABLE[name].status is Status.NO_EFFECT:
            assert value in (None, TABLE[name].accepted_value), (name, text)
        elif TABLE[name].status is Status.RENAMED and value:
            ours = parsed.params.value(TABLE[name].message)
            assert ours == value or any(
                meant in str(ours) for meant in ('nccl', 'fp16', 'tf_data')
            ), (name, text)


# Flags that a run of a few steps in this process cannot have: another length or role, other
# processes, settings that TensorFlow keeps, results instead of lines on standard output.
_NOT_RUN = re.compile(
    r'--(no)?(model|model_file|device|num_gpus|batch_size|num_batches|num_epochs|'
    r'num_warmup_batches|target_seconds|repeat|eval|job_name|task_index|\w+_hosts?|xla|'
    r'xla_compile|num_intra_threads|kmp_\w+|profile_\w+|measure_peak|verbose|'
    r'continue_on_nan)(=|$)|--result_file=-'
)
SHORT = (
    '--model=trivial --device=cpu --batch_size=2 --num_batches=3 --num_warmup_batches=1 '
    '--continue_on_nan --display_every=1'
)


def test_a_plan_can_be_run(place, request, capsys):
    # So few that runs take no longer than plans.
    number = max(1, request.config.getoption('--combinations') // 1250)
    draw = random.Random(request.config.getoption('--combinations_seed'))
    words = [word for word in RIGHT if not _NOT_RUN.match(word)]
    while number:
        # For 1 to 4 devices.
        argv = [*draw.sample(words, draw.randint(2, 6)), *SHORT.split()]
        argv.append(f'--num_gpus={draw.randint(1, 4)}')
        try:
            with _restored_process():
                make_plan(parse_argv(argv).params, ProcessEnvironment({}))
        except BenchmarkError:
            continue
        number -= 1
        with _restored_process(limit_secs=60.0):
            code = tf_cnn_benchmarks.main(argv)
        out, err = capsys.readouterr()
        assert code == 0, (argv, err)
        (total,) = re.findall(r'^total images/sec: (\d+\.\d\d)$', out, re.MULTILINE)
        assert math.isfinite(float(total)), (argv, out)
        assert re.findall(r'^(\d+)\timages/sec: ', out, re.MULTILINE)[-1] == '3', (argv, out)
