// Keys, the buttons that copy, dense rows, and the choice of columns. Everything else works without this script.
"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("script");
  const remember = (name, value) => { try { localStorage.setItem(name, value); } catch { /* not allowed here */ } };
  const recall = (name) => { try { return localStorage.getItem(name); } catch { return null; } };
  root.classList.toggle("dense", recall("dense") === "1");

  // Copy what a button names. Without a secure origin browsers allow only the old way.
  const copy = async (text) => {
    if (navigator.clipboard) return navigator.clipboard.writeText(text);
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    if (!done) throw new Error("refused");
  };
  document.addEventListener("click", async (e) => {
    const button = e.target.closest?.("[data-copy]");
    if (!button) return;
    const before = button.dataset.label ??= button.textContent;
    try { await copy(button.dataset.copy); button.textContent = "Copied"; } catch { button.textContent = "Not allowed"; }
    setTimeout(() => { button.textContent = before; }, 1500);
  });

  // The columns of a list that the reader has left out, by the texts of their heads. A style
  // sheet of its own hides them, so that rows which change in place need not be touched.
  const content = document.getElementById("content"), columns = document.getElementById("columns"), choose = document.getElementById("choosecolumns");
  const sheet = new CSSStyleSheet();
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  const lists = () => [...content.querySelectorAll("table[data-list]")];
  const optional = (table) => [...table.querySelectorAll("thead th")].slice(1).map((th) => th.textContent); // the first one names the row
  const leftOut = (list) => { try { return JSON.parse(recall(`columns ${list}`)) ?? []; } catch { return []; } };
  let shown;
  const arrange = () => {
    const rules = lists().flatMap((table) => optional(table).flatMap((head, i) => leftOut(table.dataset.list).includes(head)
      ? [`table[data-list="${table.dataset.list}"] tr > :nth-child(${i + 2}) { display: none !important }`] : [])).join("\n");
    if (rules !== shown) sheet.replaceSync(shown = rules);
    if (choose) choose.hidden = lists().length === 0;
  };
  arrange();
  new MutationObserver(arrange).observe(content, { childList: true, subtree: true });
  const offer = () => {
    if (lists().length === 0) return;
    columns.querySelector(".choice").replaceChildren(...lists().flatMap((table) => optional(table).map((head) => {
      const list = table.dataset.list, label = document.createElement("label"), box = document.createElement("input");
      box.type = "checkbox";
      box.checked = !leftOut(list).includes(head);
      box.addEventListener("change", () => {
        remember(`columns ${list}`, JSON.stringify(box.checked ? leftOut(list).filter((h) => h !== head) : [...leftOut(list), head]));
        arrange();
      });
      label.className = "check";
      label.append(box, ` ${head}`);
      return label;
    })));
    columns.showModal();
  };
  choose?.addEventListener("click", offer);

  const keys = document.getElementById("keys");
  const places = { f: "/ui/", e: "/ui/events", w: "/ui/workflows", h: "/ui/workers", a: "/ui/audit" };
  let going = 0;
  const row = (step) => {
    const links = [...document.querySelectorAll("#content table.cards tbody th a")];
    if (!links.length) return;
    const at = links.indexOf(document.activeElement);
    links[Math.min(links.length - 1, Math.max(0, at < 0 && step < 0 ? 0 : at + step))].focus();
  };
  document.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || e.target.closest?.("input, select, textarea, dialog")) return;
    const place = going > Date.now() && document.querySelector(`.top nav a[href="${places[e.key]}"]`);
    going = 0;
    if (place) { place.click(); return; }
    switch (e.key) {
      case "?": keys.showModal(); break;
      case "c": offer(); break;
      case "/": document.querySelector("#content input[name=contains], #content input[name=who]")?.focus(); break;
      case "g": going = Date.now() + 1500; return;
      case "j": row(1); break;
      case "k": row(-1); break;
      case "d": remember("dense", root.classList.toggle("dense") ? "1" : "0"); break;
      default: return;
    }
    e.preventDefault();
  });
})();
