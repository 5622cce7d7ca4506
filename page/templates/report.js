(() => {
  'use strict';
  const table = document.getElementById('table');
  const filter = document.getElementById('filter');
  const count = document.getElementById('count');
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  let sorted = '';

  const showCount = () => {
    const shown = rows.filter((row) => !row.hidden).length;
    count.textContent = `${shown} of ${rows.length} rows${sorted}`;
  };

  const sortBy = (head, column) => {
    const isNumber = head.classList.contains('number');
    const before = head.getAttribute('aria-sort');
    // The first click shows the largest number, or the first name.
    const order = before ? (before === 'ascending' ? 'descending' : 'ascending') : isNumber ? 'descending' : 'ascending';
    const sign = order === 'ascending' ? 1 : -1;
    const text = (row) => row.cells[column].textContent.replaceAll(',', '');
    const compare = (a, b) => {
      const [x, y] = [parseFloat(text(a)), parseFloat(text(b))];
      // Rows without a number come last in both orders. Shapes such as 2*1 and 2*2 begin with the same number.
      if (isNumber && Number.isNaN(x - y)) return Number.isNaN(x) - Number.isNaN(y);
      return sign * ((isNumber && x - y) || text(a).localeCompare(text(b), 'en', { numeric: true }));
    };
    for (const other of heads) other.removeAttribute('aria-sort');
    head.setAttribute('aria-sort', order);
    body.append(...[...rows].sort(compare));
    sorted = `, sorted by ${head.textContent.trim()}, ${order}`;
    showCount();
  };

  heads.forEach((head, column) => {
    const button = document.createElement('button');
    button.type = 'button';
    button.append(...head.childNodes);
    button.addEventListener('click', () => sortBy(head, column));
    head.append(button);
  });

  filter.addEventListener('input', () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
    showCount();
  });
  document.querySelector('.tools').hidden = false;
  showCount();
})();
