"""--help, help FLAG and the page of flags describe each flag, also those that the original has."""

import math
from xml.etree import ElementTree

import pytest

from models.registry import MODELS
from tests.support.outputs import refused
from tests.support.programs import ROOT, run_main
from tf_cnn.cli.help_text import describe_flag, format_help, format_page
from tf_cnn.cli.subcommands import SUBCOMMANDS
from tf_cnn.flags.help import flag_help
from tf_cnn.flags.spec import ITS_DEFAULT
from tf_cnn.plan.original_flags import FLAGS, TABLE
from tf_cnn.plan.params import SPECS

pytestmark = pytest.mark.unit


def test_help_shows_the_thirty_flags_that_people_use_and_says_where_the_others_are():
    text = format_help()
    specs = [spec for spec in SPECS.values() if flag_help(spec) in text]
    assert specs == [spec for spec in SPECS.values() if spec.common]
    assert len(specs) == 31
    assert f'--help=all lists the other {len(SPECS) - 31} flags' in text
    assert len(text.splitlines()) < 180


def test_help_begins_with_three_examples():
    examples, *_ = format_help().split('\n\n')
    assert len(examples.splitlines()) == 3
    for line in examples.splitlines():
        program, *flags = line.split()
        assert program == 'tf_cnn_benchmarks'
        assert flags[0] in SUBCOMMANDS or flags[0].startswith('--model=')


def test_help_fits_a_narrow_terminal(monkeypatch):
    monkeypatch.setattr('sys.stdout.isatty', lambda: True, raising=False)
    monkeypatch.setenv('COLUMNS', '60')
    lines = format_help().splitlines()[3:]
    # A word longer than a line stays whole.
    assert [line for line in lines if len(line) > 60 and len(line.split()) > 1] == []


def test_help_shows_the_choices_bounds_unit_and_defaults_of_each_flag_in_its_group():
    text = format_help(MODELS.list_models())
    assert max(map(len, text.splitlines())) <= 100
    for name, spec in SPECS.items():
        about = flag_help(spec)
        assert text.count(f'{about}\n') == 1, name
        assert text.index(f'{spec.group}:\n') < text.index(about)
        bounds = (spec.lower_bound, spec.upper_bound) if spec.type in (int, float) else ()
        default = '' if spec.default is None else str(spec.default)
        original = spec.original or ''
        facts = [
            *(spec.choices or ()),
            *(f'{bound:g}' for bound in bounds if math.isfinite(bound)),
            default.lower() if spec.type is bool else default,
            spec.unit or '',
            original.removeprefix(ITS_DEFAULT) if original.startswith(ITS_DEFAULT) else '',
        ]
        assert [fact for fact in facts if fact not in ' '.join(about.split())] == [], name


def test_no_flag_is_forgotten_and_each_is_described_within_100_columns():
    assert {*FLAGS} == {*SPECS} | {*TABLE}
    page = format_page()
    assert page.startswith('# Flags\n')
    for name, spec in FLAGS.items():
        text = describe_flag(name)
        assert max(map(len, text.splitlines())) <= 100
        words = ' '.join(text.split())
        message = TABLE[name].message if name in TABLE else ''
        for fact in (spec.help, spec.group, spec.original or '', message):
            assert fact in words, name
        assert ('same value' in words) == spec.shared_by_workers
        # A site makes an anchor of a heading, which is the name alone.
        (entry,) = (part for part in page.split('\n### ') if part.startswith(f'`--{name}`\n'))
        assert words in ' '.join(entry.split())


def test_helpxml_prints_each_flag_as_absl_does():
    page = ElementTree.fromstring(run_main('--helpxml')[0])
    flags = {flag.findtext('name'): flag for flag in page.iter('flag')}
    assert {*flags} == {*FLAGS}
    batch_size = flags['batch_size']
    assert batch_size.findtext('type') == 'int'
    assert batch_size.findtext('meaning') == SPECS['batch_size'].help


def test_the_page_of_flags_is_up_to_date():
    page = (ROOT / 'docs' / 'flags.md').read_text(encoding='utf-8')
    assert page == format_page(), 'run: make docs'


def test_an_unknown_name_suggests_the_nearest():
    for name, fact in (
        ('batchsize', '--help=batch_size'),
        ('kmp_block_time', '--help=kmp_blocktime'),
        ('fp16', '--help=precision?'),
        ('no_such_thing_at_all', '--help=all lists'),
    ):
        with refused(f'--help={name}', fact):
            describe_flag(name)
