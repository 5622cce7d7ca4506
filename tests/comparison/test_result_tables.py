"""The one value that all tables of results are printed from."""

import io

import pytest

from comparison.tables import Table, TableColumn, abbreviate, as_csv, print_table, printable

pytestmark = pytest.mark.unit

COLUMNS = (TableColumn('name', wraps=True), TableColumn('size', is_number=True))


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_table_of_text_has_its_title_and_a_gap_below_each_group() -> None:
    rows = (('a', '1,000'), ('total', '1,000'), ('b', '20'), ('total', '20'))
    text = Table(COLUMNS, rows, 'sizes', sums=(1, 3)).as_text(io.StringIO(), 80)
    assert [line.strip() for line in text.splitlines()] == [
        'sizes', '', 'name     size', '─' * 15, 'a       1,000', 'total   1,000', '',
        'b          20', 'total      20', '',
    ]  # fmt: skip
    dense = Table(COLUMNS, rows[:2]).as_text(io.StringIO(), 80, is_dense=True)
    assert dense.splitlines() == ['  name     size', ' ───────────────', '  a       1,000', '  total   1,000']


def test_styles_and_the_width_of_a_terminal_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('TERM', 'xterm')
    monkeypatch.setenv('COLUMNS', '30')
    for name in ('NO_COLOR', 'FORCE_COLOR', 'TTY_COMPATIBLE'):
        monkeypatch.delenv(name, raising=False)
    table = Table(COLUMNS, [([('one two three four five six', 'bold red'), ('\nnext', '')], '1')])
    plain = table.as_text(io.StringIO(), 80)
    assert '\x1b' not in plain
    assert 'one two three four five six' in plain
    styled = table.as_text(Terminal(), 80)
    assert '\x1b[1;31m' in styled
    assert 'one two three four five six' not in styled


def test_a_table_of_markdown_is_aligned_and_escapes_its_strokes() -> None:
    table = Table(COLUMNS, [('a | b', '1'), ([('c', 'bold'), ('d', '')], '20')])
    assert table.as_markdown().splitlines() == [
        '| name   | size |',
        '| ------ | ---: |',
        '| a \\| b |    1 |',
        '| cd     |   20 |',
    ]


def test_csv_has_json_in_cells_that_are_no_number_or_text() -> None:
    rows = [
        {'name': 'a,b', 'flags': {'x': 1}, 'ok': True, 'none': None},
        {'name': 'c', 'flags': [], 'ok': False, 'none': 1.5},
    ]
    assert as_csv(rows).splitlines() == ['name,flags,ok,none', '"a,b","{""x"": 1}",true,', 'c,[],false,1.5']


@pytest.mark.parametrize(
    ('form', 'lines'),
    [
        ('text', ['  name   size', ' ─────────────', '  a         1', '', 'first', 'second']),
        ('markdown', ['| name | size |', '| ---- | ---: |', '| a    |    1 |', '', '- first', '- second']),
        ('csv', ['name,size', 'a,1']),
        ('json', ['{', '  "rows": [', '    {', '      "name": "a",', '      "size": 1', '    }', '  ]', '}']),
    ],
)
def test_results_are_printed_in_each_format(form: str, lines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    print_table(Table(COLUMNS, [('a', '1')]), form, {'rows': [{'name': 'a', 'size': 1}]}, ['first', 'second'])
    assert capsys.readouterr().out == ''.join(f'{line}\n' for line in lines)


def test_results_without_a_row_print_the_notes_or_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    for form, expected in (('text', 'first\n'), ('csv', '')):
        print_table(Table(COLUMNS, []), form, {'rows': []}, ['first'])
        assert capsys.readouterr().out == expected


def test_text_from_files_cannot_change_the_terminal_and_of_many_names_three_are_shown() -> None:
    assert printable('a\x1b[31m\nb ü') == 'a\\x1b[31m\\nb ü'
    assert abbreviate(['a', 'b', 'c']) == 'a, b, c'
    assert abbreviate(list('abcde')) == 'a, b, c and 2 more'
