(() => {
  'use strict';
  // Only in served pages: loads the page again when there are other results.
  const version = document.documentElement.dataset.version;
  const look = async () => {
    try {
      const answer = await fetch('/version', { cache: 'no-store' });
      if (answer.ok && (await answer.text()) !== version) return location.reload();
    } catch {
      // The server has ended; the page stays as it is.
    }
    setTimeout(look, 1000);
  };
  setTimeout(look, 1000);
})();
