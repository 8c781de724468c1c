// Pages are whole without this. It follows a run's events, and sends a form when a choice changes.
"use strict";

const main = document.getElementById("main");
const AT_LEAST_MS = 1000; // between two looks at a run
const AGAIN_MS = 5000; // after a stream that was refused: browsers give that one up
const AWAY = "The service does not answer: what is shown may be old.";

function follow(address, kinds) {
  let source = null;
  let timer = null;
  let last = 0;
  let isOver = false;

  // A browser has six connections to a service: pages that nobody sees keep none of them.
  function open() {
    if (source !== null || document.hidden || isOver) return;
    source = new EventSource(address);
    for (const kind of kinds) source.addEventListener(kind, told);
    source.addEventListener("error", () => {
      told();
      if (source === null || source.readyState !== EventSource.CLOSED) return;
      close();
      setTimeout(open, AGAIN_MS);
    });
  }

  function close() {
    if (source !== null) source.close();
    source = null;
  }

  function say(text) {
    const shown = document.getElementById("away");
    if (shown && !text) shown.remove();
    if (shown || !text) return;
    const note = document.createElement("p");
    note.id = "away";
    note.className = "note";
    note.setAttribute("role", "status");
    note.textContent = text;
    main.prepend(note);
  }

  async function refresh() {
    timer = null;
    last = Date.now();
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (answer.status === 401) location.reload();
    say(answer.status >= 500 ? AWAY : "");
    if (!answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of document.querySelectorAll("[data-part]")) {
      const now = fresh.getElementById(part.id);
      if (now) part.replaceWith(document.adoptNode(now));
    }
    isOver = !fresh.getElementById("main").dataset.follow;
    if (isOver) close();
  }

  function told() {
    if (timer === null && !isOver) {
      timer = setTimeout(() => refresh().catch(() => say(AWAY)), Math.max(150, last + AT_LEAST_MS - Date.now()));
    }
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return close();
    told(); // of what happened meanwhile
    open();
  });
  open();
}

if (main.dataset.follow) follow(main.dataset.follow, main.dataset.events.split(" "));

for (const choice of document.querySelectorAll("[data-submits]")) {
  choice.addEventListener("change", () => {
    choice.form.requestSubmit(document.getElementById(choice.dataset.submits));
  });
}
