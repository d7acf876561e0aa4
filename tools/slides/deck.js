"use strict";
// Shows one slide at a time. The number of the slide is the address's fragment, so a link leads to it.
const slides = [...document.querySelectorAll(".slide")];
const place = document.getElementById("place");
const say = document.getElementById("say");
let now = 0;

// What is too large for its page becomes smaller, a little at a time; never unreadable.
function fit(page) {
  page.style.fontSize = "";
  const full = parseFloat(getComputedStyle(page).fontSize);
  const tooLarge = () => page.scrollHeight > page.clientHeight + 1 || page.scrollWidth > page.clientWidth + 1;
  for (let share = 1; tooLarge() && share > 0.6; share -= 0.04) {
    page.style.fontSize = `${full * (share - 0.04)}px`;
  }
}

function show(number) {
  now = Math.max(0, Math.min(slides.length - 1, number));
  slides.forEach((slide, i) => { slide.hidden = i !== now; });
  place.textContent = `${now + 1} / ${slides.length}`;
  history.replaceState(null, "", `#${now + 1}`);
  fit(slides[now].querySelector(".page"));
}

function toggleNotes() {
  const on = document.documentElement.classList.toggle("saying");
  say.setAttribute("aria-pressed", String(on));
  fit(slides[now].querySelector(".page"));
}

const keys = {
  ArrowRight: () => show(now + 1), PageDown: () => show(now + 1), " ": () => show(now + 1),
  ArrowLeft: () => show(now - 1), PageUp: () => show(now - 1),
  Home: () => show(0), End: () => show(slides.length - 1), n: toggleNotes, N: toggleNotes,
};
document.addEventListener("keydown", (event) => {
  // A space presses the button or opens the answer that has the focus; arrows scroll wide code.
  const inside = event.target.closest("summary, button, a, pre");
  const theirs = inside && (event.key === " " || (inside.matches("pre") && event.key.startsWith("Arrow")));
  if (keys[event.key] && !theirs && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    keys[event.key]();
  }
});
document.getElementById("back").addEventListener("click", () => show(now - 1));
document.getElementById("forth").addEventListener("click", () => show(now + 1));
say.addEventListener("click", toggleNotes);
addEventListener("resize", () => fit(slides[now].querySelector(".page")));
addEventListener("hashchange", () => show(parseInt(location.hash.slice(1), 10) - 1));
// For paper the sizes of the style sheet hold again.
addEventListener("beforeprint", () => slides.forEach((s) => { s.querySelector(".page").style.fontSize = ""; }));
addEventListener("afterprint", () => show(now));
document.documentElement.classList.add("live");
show((parseInt(location.hash.slice(1), 10) || 1) - 1);
