// Keeps a page up to date: every three seconds the script fetches the page again and changes
// the parts that differ, in place. Everything works without this script; then changes show
// after a reload.
"use strict";
(() => {
  const content = document.getElementById("content");

  // Use the server's clock: this machine's may differ.
  const skew = Date.parse(document.body.dataset.now) - Date.now();
  const ago = (seconds) =>
    seconds < 2 ? "now" : seconds < 60 ? `${Math.floor(seconds)} s ago` : seconds < 3600 ? `${Math.floor(seconds / 60)} min ago`
      : seconds < 48 * 3600 ? `${Math.floor(seconds / 3600)} h ago` : `${Math.floor(seconds / 86400)} days ago`;
  const tick = (root) => {
    for (const t of root.querySelectorAll("time[datetime]")) {
      const at = Date.parse(t.dateTime);
      if (!at) continue;
      const text = ago((Date.now() + skew - at) / 1000);
      if (t.textContent !== text) t.textContent = text;
      if (t.title && !t.title.includes("·")) t.title += ` · ${new Date(at).toLocaleString()} here`;
    }
  };
  setInterval(() => { if (!document.hidden) tick(content); }, 5000);

  // On a narrow screen, scroll a picture to the current phase.
  let lit;
  const centre = () => {
    const now = content.querySelector(".diagram .now");
    const name = now?.querySelector("text")?.textContent;
    if (!now || name === lit) return;
    lit = name;
    const canvas = now.closest(".canvas"), box = now.getBoundingClientRect(), frame = canvas.getBoundingClientRect();
    canvas.scrollLeft += box.left + box.width / 2 - frame.left - frame.width / 2;
  };
  centre();

  // Show the outcome of an action once, and not again after a reload.
  const here = new URL(location.href);
  if (here.searchParams.has("done")) {
    for (const name of ["done", "n", "failed"]) here.searchParams.delete(name);
    history.replaceState(null, "", here);
  }

  if (!("live" in document.body.dataset)) return;
  const sign = document.getElementById("live"), notice = document.getElementById("notice");
  let seen = new Date();
  const say = (state, text = "", link = null) => {
    sign.dataset.state = state;
    sign.textContent = state === "on" ? "live" : "not live";
    if (notice.dataset.text === text) return;
    notice.dataset.text = text;
    notice.textContent = text;
    if (link) notice.append(" ", link);
  };

  // morph changes old into fresh and does not touch equal parts: an element with
  // the focus keeps it, checked boxes stay checked, a click does not miss.
  const key = (n) => n.dataset?.key ?? "";
  const morph = (old, fresh) => {
    for (const a of [...old.attributes]) if (!fresh.hasAttribute(a.name) && !(a.name === "open" && old.nodeName === "DETAILS")) old.removeAttribute(a.name);
    for (const a of fresh.attributes) if (old.getAttribute(a.name) !== a.value) old.setAttribute(a.name, a.value);
    const stays = new Set(Array.from(fresh.children, key)), keyed = new Map();
    for (const o of [...old.children]) {
      if (!key(o)) continue;
      if (stays.has(key(o))) keyed.set(key(o), o); else o.remove();
    }
    let at = old.firstChild;
    for (const f of [...fresh.childNodes]) {
      let o = key(f) ? keyed.get(key(f)) : at;
      while (o && !key(f) && (key(o) || o.nodeName !== f.nodeName)) o = o.nextSibling;
      if (!o || o.nodeName !== f.nodeName) {
        if (key(f)) f.classList.add("fresh");
        old.insertBefore(f, at);
        continue;
      }
      keyed.delete(key(f));
      if (o === at) at = at.nextSibling; else old.insertBefore(o, at);
      if (o.nodeType === Node.ELEMENT_NODE) morph(o, f);
      else if (o.data !== f.data) {
        o.data = f.data;
        if (old.classList.contains("state")) old.classList.add("fresh");
      }
    }
    while (at) { const next = at.nextSibling; at.remove(); at = next; }
  };

  const show = (page) => {
    const fresh = page.getElementById("content");
    if (!fresh) return;
    tick(fresh);
    const focused = document.activeElement;
    morph(content, fresh);
    if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
    document.title = page.title;
    centre();
  };

  // refresh fetches the page, and returns whether the server answers.
  let over = false;
  const refresh = async () => {
    let answer;
    try {
      answer = await fetch(location.href, { headers: { Accept: "text/html" }, signal: AbortSignal.timeout(9500) });
      const text = await answer.text();
      if (answer.redirected && new URL(answer.url).pathname === "/ui/login") {
        const link = document.createElement("a");
        link.href = answer.url;
        link.textContent = "Sign in";
        over = true;
        say("off", "You are signed out. This page is no longer updated.", link);
        return false;
      }
      if (answer.status === 404) { say("off", "This no longer exists. What you see is its last state."); return true; }
      if ([401, 403, 429].includes(answer.status) || answer.status >= 500) {
        say("off", `The server does not show this now (${answer.status}). What you see is from ${seen.toLocaleTimeString()}; trying again.`);
        return false;
      }
      show(new DOMParser().parseFromString(text, "text/html"));
      seen = new Date();
      say("on");
      return true;
    } catch {
      say("off", `The server does not answer. What you see is from ${seen.toLocaleTimeString()}; trying again.`);
      return false;
    }
  };

  // look fetches the page again, and then every three seconds: less often when the server takes
  // long to make a page or does not answer.
  let timer = 0, busy = false, failures = 0;
  const look = async () => {
    clearTimeout(timer);
    if (busy || over) return;
    busy = true;
    const begin = performance.now();
    failures = await refresh() ? 0 : failures + 1;
    busy = false;
    if (over || document.hidden) return;
    const pause = failures ? 250 * 2 ** failures * (0.5 + Math.random() / 2) : Math.max(3000, 4 * (performance.now() - begin));
    timer = setTimeout(look, Math.min(15000, pause));
  };

  // A hidden page asks nothing.
  document.addEventListener("visibilitychange", () => { if (document.hidden) clearTimeout(timer); else { failures = 0; look(); } });
  addEventListener("pagehide", () => clearTimeout(timer));
  addEventListener("pageshow", (e) => { if (e.persisted) look(); });
  addEventListener("online", look);
  say("on");
  if (!document.hidden) timer = setTimeout(look, 3000);
})();
