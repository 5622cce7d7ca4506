"""What --help, help FLAG and the page of flags tell of each flag of this program and of the original."""

import csv
from pathlib import Path

import pytest

from commands.subcommands import SUBCOMMANDS
from params import SPECS
from params.descriptions import describe_all_flags, describe_flag
from params.help_text import flag_help, format_description, format_help, format_page
from params.original import TABLE, Fate
from params.spec import ITS_DEFAULT
from tests.support.outputs import refused

pytestmark = pytest.mark.unit

DESCRIPTIONS = {description.name: description for description in describe_all_flags()}
with open(Path(__file__).parent / 'original_flags.csv', encoding='utf-8', newline='') as file:
    ORIGINAL = {row['name']: row for row in csv.DictReader(file)}


def test_help_shows_the_thirty_flags_that_people_use_and_says_where_the_others_are() -> None:
    text = format_help(SUBCOMMANDS)
    shown = [spec for spec in SPECS.values() if flag_help(spec) in text]
    assert shown == [spec for spec in SPECS.values() if spec.common]
    assert len(shown) == 30
    assert f'--help=all lists the other {len(SPECS) - 30} flags' in text
    assert len(text.splitlines()) < 180


def test_help_tells_the_choices_bounds_unit_and_defaults_of_each_flag_in_its_group() -> None:
    text = format_help(SUBCOMMANDS, everything=True)
    assert max(map(len, text.splitlines())) <= 100
    for name, spec in SPECS.items():
        heading = f'  --[no]{name}\n' if spec.type is bool else f'  --{name}=VALUE\n'
        assert text.count(heading) == 1
        assert text.index(f'{spec.group}:\n') < text.index(heading)
        # The indented lines up to the next flag or group.
        about = ' '.join(text.split(heading)[1].split('\n  --')[0].split('\n\n')[0].split())
        bounds = [f'{bound:g}' for bound in (spec.lower_bound, spec.upper_bound) if bound is not None]
        default = '' if spec.default is None else str(spec.default)
        original = (spec.original or '').removeprefix(ITS_DEFAULT)
        facts = [
            *(spec.choices or ()),
            *bounds,
            default.lower() if spec.type is bool else default,
            spec.unit or '',
            original if original != (spec.original or '') else '',
        ]
        assert [fact for fact in facts if fact not in about] == [], name


def test_no_flag_is_forgotten_and_each_is_described_within_100_columns() -> None:
    assert {*DESCRIPTIONS} == {*SPECS} | {*TABLE}
    assert {name for name, description in DESCRIPTIONS.items() if description.fate} == {*ORIGINAL}
    page = format_page()
    assert page.startswith('# Flags\n')
    assert max(map(len, page.splitlines())) <= 120
    for name, description in DESCRIPTIONS.items():
        text = format_description(description)
        assert max(map(len, text.splitlines())) <= 100
        words = ' '.join(text.split())
        assert words.startswith(description.usage)
        assert description.meaning
        for part in (description.meaning, *description.facts.values()):
            assert ' '.join(part.split()) in words
        # A site makes an anchor of a heading, which is the name alone.
        (entry,) = (part for part in page.split('\n### ') if part.startswith(f'`--{name}`\n'))
        assert words in ' '.join(entry.split())


def test_a_default_that_is_not_the_originals_is_told_beside_it() -> None:
    for name, row in ORIGINAL.items():
        if name not in SPECS:
            continue
        spec, default = SPECS[name], row['default'].removeprefix('[]')
        same = (spec.read(default) if default else None) == spec.default or not (default or spec.default)
        # The original's own number of warm-up steps is 10, too, where none is given.
        told = (spec.original or '').startswith(ITS_DEFAULT)
        assert same != told or name == 'num_warmup_batches', name


def test_a_flag_tells_when_it_has_no_effect_and_what_differs_from_the_original() -> None:
    momentum = describe_flag('momentum')
    assert [flag in momentum.facts['No effect'] for flag in ('--eval', '--forward_only', '--optimizer')] == [True] * 3
    assert 'same value' in momentum.facts['Clusters']
    fates = {name: describe_flag(name).fate for name in ('momentum', '--num_ps', 'mkl', 'use_fp16')}
    assert [*fates.values()] == [Fate.WORKS, None, Fate.NO_EFFECT, Fate.RENAMED]
    assert describe_flag('device').facts['Original'].endswith('its default is gpu')
    assert TABLE['mkl'].says in describe_flag('mkl').facts['Here']
    assert '--mkl=False' in describe_flag('mkl').facts['Accepted']
    assert '--precision' in describe_flag('use_fp16').facts['Here']
    assert TABLE['trt_mode'].says in describe_flag('trt_mode').facts['Here']


def test_a_flag_is_found_however_it_is_spelled_and_an_unknown_name_suggests_the_nearest() -> None:
    for name in ('eval', '--eval', '--noeval', '-eval', '--eval=true', 'noeval'):
        assert describe_flag(name) == DESCRIPTIONS['eval']
    for name, near in (('batchsize', 'batch_size'), ('kmp_block_time', 'kmp_blocktime')):
        with refused(f'--help={name}', f'--help={near}'):
            describe_flag(name)
    with refused('--help=no_such_thing_at_all', '--help lists'):
        describe_flag('no_such_thing_at_all')
