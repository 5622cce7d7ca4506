"""A table of results is printed as text, Markdown, CSV and JSON."""

import io
import json
import math
import re
from operator import itemgetter

import pytest

from tf_cnn.results.tables import (
    Column,
    Table,
    abbreviate,
    as_csv,
    escape_unprintable,
    print_table,
)

pytestmark = pytest.mark.unit

COLUMNS = (Column('name', itemgetter(0), wraps=True), Column('size', itemgetter(1), is_number=True))


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_cell_that_wraps_has_several_lines_only_on_a_narrow_terminal(monkeypatch):
    monkeypatch.setenv('TERM', 'xterm')
    monkeypatch.setenv('COLUMNS', '30')
    table = Table(COLUMNS, [('one two three four five six', '1,000')])
    assert table.as_text(io.StringIO()).splitlines() == [
        'name                          size',
        '─' * 34,
        'one two three four five six  1,000',
    ]
    assert table.as_text(Terminal()).splitlines()[2:] == [
        f'one two three four five{" " * 2}1,000',
        'six',
    ]


def test_the_last_columns_wrap_first_and_a_pipe_has_100_columns():
    columns = (*COLUMNS, Column('verdict', itemgetter(2), wraps=True))
    row = ('long ' * 12, '1,000', 'slower, ' * 6)
    lines = Table(columns, [row]).as_text(io.StringIO()).splitlines()
    assert len(lines[1]) == 100
    assert ' '.join(row[0].split()) in lines[2]
    assert lines[3].strip().startswith('slower')


def test_rows_become_lists_where_the_table_does_not_fit(monkeypatch):
    monkeypatch.setenv('TERM', 'xterm')
    monkeypatch.setenv('COLUMNS', '12')
    columns = (*COLUMNS, Column('rate', itemgetter(2), is_number=True))
    table = Table(columns, [('a', '1', '2.0'), ('b', '', '3.0')])
    assert table.as_text(Terminal()).splitlines() == [
        'name: a',
        '    size: 1',
        '    rate: 2.0',
        'name: b',
        '    rate: 3.0',
    ]


@pytest.mark.parametrize('terminal', ['xterm', 'dumb', 'unknown'])
@pytest.mark.parametrize('columns', ['10', '40', '60', '93', '110'])
def test_every_terminal_shows_all_words_of_every_column(terminal, columns, monkeypatch):
    monkeypatch.setenv('TERM', terminal)
    monkeypatch.setenv('COLUMNS', columns)
    numbers = [Column(f'number {i}', itemgetter(i + 2), is_number=True) for i in range(6)]
    verdict = Column('verdict', itemgetter(8), wraps=True)
    row = ('a long name', *'1234567', 'baseline of all')
    words = Table((*COLUMNS, *numbers, verdict), [row]).as_text(Terminal()).split()
    assert {*' '.join(row).split()} <= {*words}


def test_a_table_of_markdown_is_aligned_and_escapes_its_strokes():
    table = Table(COLUMNS, [('a | b', '1'), ('cd', '20')])
    assert table.as_markdown().splitlines() == [
        '| name   | size |',
        '| ------ | ---: |',
        '| a \\| b |    1 |',
        '| cd     |   20 |',
    ]


def test_text_of_a_document_stays_text_in_markdown(capsys):
    for text in (
        '<img src=x onerror=alert(1)>',
        '[a](javascript:b)',
        '![a](http://b/c.png)',
        '`a`',
        '&lt;',
        'a\\b',
        'a|b',
    ):
        print_table(Table(COLUMNS, [(text, '1')]), 'markdown', {}, [f'note: {text}'])
        _, _, row, _, note = capsys.readouterr().out.splitlines()
        cell = row.removeprefix('| ').partition(' |')[0].rstrip()
        for written in (cell, note.removeprefix('- note: ')):
            # CommonMark 0.31, section 2.4: a backslash makes punctuation a plain character.
            assert re.sub(r'\\([\\`\[\]<&|])', r'\1', written) == text
            assert not re.search(r'(?<!\\)(\\\\)*[`\[\]<&|]', written)


def test_one_list_of_columns_makes_the_cells_and_the_objects_of_rows():
    columns = (
        Column('size', itemgetter(0), 'size', lambda row: f'{row[0]:,}', is_number=True),
        Column('', itemgetter(1), 'bounds'),
        Column('remark', itemgetter(2)),
    )
    table = Table(columns, [(1000, (1.5, math.nan), 'a'), (2, None, None)])
    assert [column.title for column in table.columns] == ['size', 'remark']
    assert table.rows == [('1,000', 'a'), ('2', '')]
    assert table.objects == [{'size': 1000, 'bounds': [1.5, None]}, {'size': 2, 'bounds': None}]


def test_csv_has_json_in_cells_that_are_no_number_or_text():
    rows = [
        {'name': 'a,b', 'flags': {'x': 1}, 'ok': True, 'none': None},
        {'name': 'c', 'flags': [], 'ok': False, 'none': 1.5},
    ]
    assert as_csv(rows).splitlines() == [
        'name,flags,ok,none',
        '"a,b","{""x"": 1}",true,',
        'c,[],false,1.5',
    ]


def test_results_are_printed_in_each_format(capsys):
    document = {'rows': [{'name': 'a', 'size': 1}]}
    for form, text in (
        ('text', 'above\n\nname  size\n──────────\na        1\n\nfirst\nsecond\n'),
        (
            'markdown',
            'above\n\n| name | size |\n| ---- | ---: |\n| a    |    1 |\n\n- first\n- second\n',
        ),
        ('csv', 'name,size\na,1\n'),
        ('json', f'{json.dumps(document, indent=2)}\n'),
    ):
        print_table(Table(COLUMNS, [('a', '1')]), form, document, ['first', 'second'], ['above'])
        assert capsys.readouterr().out == text


def test_results_without_a_row_print_the_notes_or_nothing(capsys):
    for form, text in (('text', 'first\n'), ('csv', '')):
        print_table(Table(COLUMNS, []), form, {'rows': []}, ['first'])
        assert capsys.readouterr().out == text


def test_text_from_files_cannot_change_the_terminal():
    assert escape_unprintable('a\x1b[31m\nb ü') == 'a\\x1b[31m\\nb ü'


def test_three_of_many_names_are_shown():
    assert abbreviate(['a', 'b', 'c']) == 'a, b, c'
    assert abbreviate(list('abcde')) == 'a, b, c and 2 more'
