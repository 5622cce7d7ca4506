"""What help FLAG and the page of flags tell of each flag of this program and of the original."""

import csv
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

import tf_cnn_benchmarks
from params import SPECS
from params.descriptions import FlagDescription, describe_all_flags, describe_flag
from params.help_text import format_description, format_page
from params.original import TABLE, Fate
from params.spec import ITS_DEFAULT
from tests.support.outputs import refused

pytestmark = pytest.mark.unit

DOCS = Path(tf_cnn_benchmarks.__file__).parent / 'docs'
PAGE = format_page()
DESCRIPTIONS = {description.name: description for description in describe_all_flags()}
with open(Path(__file__).parent / 'original_flags.csv', encoding='utf-8', newline='') as file:
    ORIGINAL = {row['name']: row for row in csv.DictReader(file)}


def test_the_page_is_made_with_lines_of_120_columns_and_no_empty_part() -> None:
    assert PAGE.startswith('# Flags\n')
    assert max(map(len, PAGE.splitlines())) <= 120
    assert '\n\n\n' not in PAGE
    tokens = MarkdownIt('commonmark').parse(PAGE)
    levels = [int(token.tag[1:]) for token in tokens if token.type == 'heading_open']
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    # Not one line became a block of code, a quotation or a rule by chance.
    kinds = {token.type.removesuffix('_open') for token in tokens if token.nesting >= 0}
    assert kinds == {'heading', 'inline', 'html_block', 'paragraph', 'bullet_list', 'list_item'}


def test_no_flag_is_forgotten() -> None:
    assert {*DESCRIPTIONS} == {*SPECS} | {*TABLE}
    assert {name for name, description in DESCRIPTIONS.items() if description.fate} == {*ORIGINAL}
    assert all(description.meaning for description in DESCRIPTIONS.values())


@pytest.mark.parametrize('name', [name for name in ORIGINAL if name in SPECS])
def test_a_default_that_is_not_the_originals_is_told_beside_it(name: str) -> None:
    spec, default = SPECS[name], ORIGINAL[name]['default'].removeprefix('[]')
    same = (spec.read(default) if default else None) == spec.default or not (default or spec.default)
    # The original's own number of warm-up steps is 10, too, where none is given.
    told = (spec.original or '').startswith(ITS_DEFAULT)
    assert same != told or name == 'num_warmup_batches'


def _texts(tokens: list[Token]) -> Iterator[str]:
    """The text of each heading, paragraph and item, as a reader sees it."""
    for token in tokens:
        if token.type == 'inline':
            yield ''.join(' ' if child.type == 'softbreak' else child.content for child in token.children or ())


def test_the_page_shows_what_help_says_under_an_anchor_for_each_flag() -> None:
    tokens = MarkdownIt('commonmark').parse(PAGE)
    texts = list(_texts(tokens))
    # A site makes an anchor of a heading: lower case, without punctuation but for - and _.
    assert all(texts.count(f'--{name}') == 1 for name in DESCRIPTIONS)
    headings = [texts.index(f'--{name}') for name in DESCRIPTIONS]
    for position, description in zip(headings, DESCRIPTIONS.values(), strict=True):
        facts = [f'{title}: {text}' for title, text in description.facts.items()]
        assert texts[position + 1 : position + 2 + len(facts)] == [description.meaning, *facts], description.name
    links = re.findall(r'\]\(([^)]*)\)', PAGE)
    assert {link for link in links if link.startswith('#')} == {f'#--{name}' for name in DESCRIPTIONS}
    others = {link for link in links if not link.startswith('#')}
    assert 'distributed.md' in others
    assert [link for link in others if not (DOCS / link).exists()] == []


def test_a_flag_tells_when_it_has_no_effect_and_what_differs_from_the_original() -> None:
    momentum, spec = describe_flag('momentum'), describe_flag('--num_ps')
    assert '--eval' in momentum.facts['No effect']
    assert '--forward_only' in momentum.facts['No effect']
    assert '--optimizer=momentum' in momentum.facts['No effect']
    assert 'same value' in momentum.facts['Clusters']
    assert (momentum.fate, spec.fate) == (Fate.WORKS, None)
    assert describe_flag('device').facts['Original'].endswith('its default is gpu')
    assert (describe_flag('mkl').fate, describe_flag('use_fp16').fate) == (Fate.NO_EFFECT, Fate.RENAMED)
    assert TABLE['mkl'].says in describe_flag('mkl').facts['Here']
    assert '--mkl=False' in describe_flag('mkl').facts['Accepted']
    assert '--precision' in describe_flag('use_fp16').facts['Here']
    assert TABLE['trt_mode'].says in describe_flag('trt_mode').facts['Here']


@pytest.mark.parametrize('name', ['eval', '--eval', '--noeval', '-eval', '--eval=true', 'noeval'])
def test_a_flag_is_found_however_it_is_spelled(name: str) -> None:
    assert describe_flag(name) == DESCRIPTIONS['eval']


@pytest.mark.parametrize('description', DESCRIPTIONS.values(), ids=lambda description: description.name)
def test_the_whole_description_is_printed_within_100_columns(description: FlagDescription) -> None:
    text = format_description(description)
    assert max(map(len, text.splitlines())) <= 100
    words = text.split()
    assert words[0] == description.usage
    for part in (description.meaning, *description.facts.values()):
        assert ' '.join(part.split()) in ' '.join(words)


@pytest.mark.parametrize(('name', 'near'), [('batchsize', 'batch_size'), ('kmp_block_time', 'kmp_blocktime')])
def test_an_unknown_name_suggests_the_nearest(name: str, near: str) -> None:
    with refused(f'--help={name}', f'--help={near}'):
        describe_flag(name)
    with refused('--help=no_such_thing_at_all', '--help lists'):
        describe_flag('no_such_thing_at_all')
