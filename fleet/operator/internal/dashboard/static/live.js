// Keeps a page fresh: when the server says that something has changed, the page
// is fetched again and the parts that differ are replaced. Without this script
// everything works, and a reload shows what is new.
"use strict";
(() => {
  const path = document.body.dataset.live;
  const sign = document.getElementById("live");
  if (!path || !sign) return;

  let wanted = false, busy = false, failures = 0;
  const say = (text, state) => { sign.textContent = text; sign.dataset.state = state; };

  const replace = (page) => {
    for (const fresh of page.querySelectorAll("[data-part]")) {
      const part = document.querySelector(`[data-part="${fresh.dataset.part}"]`);
      if (!part || part.innerHTML === fresh.innerHTML) continue;
      // What has the focus keeps it, by where it leads.
      const at = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
      part.replaceChildren(...fresh.childNodes);
      if (at) part.querySelector(`[href="${CSS.escape(at)}"]`)?.focus({ preventScroll: true });
    }
  };

  const refresh = async () => {
    if (busy || document.hidden) { wanted = true; return; }
    busy = true;
    wanted = false;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (answer.ok && !answer.redirected) replace(new DOMParser().parseFromString(await answer.text(), "text/html"));
    } catch { /* the stream will say that the server is away */ }
    setTimeout(() => { busy = false; if (wanted) refresh(); }, 500);
  };

  const open = () => {
    const stream = new EventSource(path);
    stream.onopen = () => { if (failures) refresh(); failures = 0; say("live", "on"); };
    stream.onmessage = refresh;
    const again = () => {
      stream.close();
      failures++;
      if (failures > 1) say("reconnecting", "off");
      setTimeout(open, Math.min(30000, 500 * 2 ** failures) * (0.5 + Math.random() / 2));
    };
    stream.addEventListener("over", again);
    stream.onerror = again;
    addEventListener("pagehide", () => stream.close(), { once: true });
  };
  document.addEventListener("visibilitychange", () => { if (!document.hidden && wanted) refresh(); });
  addEventListener("pageshow", (e) => { if (e.persisted) location.reload(); });
  open();
})();
