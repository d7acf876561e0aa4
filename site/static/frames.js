/* Widgets without Python: recorded states, or a formula in calculators/. Nothing is fetched from
   elsewhere, and of the pictures only the one that is shown and those one step away from it. */
(() => {
  "use strict";
  if (window.courseStates) return; // a page with two widgets asks for this file twice
  const started = {};
  const PLAY_MS = 800; // between two steps, as in utils/viz/explore.py

  /** Called by a recording's own file, states.js. */
  window.courseStates = (name, states) => started[name](states);

  function element(tag, attributes = {}, text = "") {
    const made = document.createElement(tag);
    Object.entries(attributes).forEach(([name, value]) => made.setAttribute(name, value));
    made.textContent = text;
    return made;
  }

  class Widget {
    constructor(root) {
      this.root = root;
      this.folder = root.dataset.folder;
      this.words = root.querySelector(".frames-words");
      this.place = root.querySelector(".frames-place");
      this.controls = [...root.querySelectorAll("[data-axis]")];
      this.buttons = [...root.querySelectorAll("button[data-button]")];
      this.controls.forEach((control) => control.addEventListener("input", () => this.moved(control)));
      root.querySelectorAll("button[data-plays]").forEach((button) => this.player(button));
      this.buttons.forEach((button, i) => button.addEventListener("click", () => this.pressed(i)));
      root.addEventListener("focusin", () => this.load());
      new IntersectionObserver((seen, observer) => {
        if (!seen.some((entry) => entry.isIntersecting)) return;
        observer.disconnect();
        this.load();
      }, { rootMargin: "400px" }).observe(root);
    }

    /** Fetch what the states say: once, and only when somebody comes near. */
    load() {
      if (this.loading) return;
      this.loading = true;
      const name = this.folder.split("/").pop();
      started[name] = (states) => this.start(states);
      document.head.append(element("script", { src: `${this.folder}/states.js` }));
    }

    start(states) {
      this.states = states;
      this.state = states.start || 0;
      if (states.kind === "calculator") this.show(null);
      this.measure();
      this.root.dataset.ready = "yes";
      if (this.missed) this.moved(this.missed);
    }

    /** A button that moves its slider on from step to step, and from the last one to the first. */
    player(button) {
      const slider = this.root.querySelector(`#${button.dataset.plays}`);
      const to = (value) => {
        slider.value = value;
        this.moved(slider);
      };
      const stop = () => {
        clearInterval(this.playing);
        this.playing = null;
        button.textContent = "Play";
      };
      button.addEventListener("click", () => {
        if (this.playing) return stop();
        if (slider.value === slider.max) to(0);
        button.textContent = "Stop";
        this.playing = setInterval(() => {
          to(Number(slider.value) + 1);
          if (slider.value === slider.max) stop();
        }, PLAY_MS);
      });
      slider.addEventListener("input", stop); // a hand on it
    }

    /** Numbers of the values that the controls stand at. */
    at() {
      return this.controls.map((c) => (c.type === "checkbox" ? Number(c.checked) : Number(c.value)));
    }

    moved(control) {
      const values = control.dataset.values && JSON.parse(control.dataset.values);
      if (values) {
        const text = values[Number(control.value)];
        control.setAttribute("aria-valuetext", text);
        this.root.querySelector(`output[for="${control.id}"]`).textContent = text;
      }
      if (!this.states) this.missed = control;
      else this.show(this.controls.indexOf(control));
    }

    /** Show the state of the controls. `axis`: the one that moved. */
    show(axis) {
      const at = this.at();
      if (this.states.kind === "calculator") {
        const values = {};
        this.states.axes.forEach((a, k) => (values[a.name] = this.states.tables.values[a.name][at[k]]));
        const drawn = window.courseCalculators[this.states.calculator](this.states.tables, values);
        this.words.textContent = drawn.words;
        this.place.innerHTML = drawn.svg;
        return;
      }
      const { axes, index, frames } = this.states;
      const frameAt = (places) =>
        frames[index[places.reduce((i, value, k) => i * axes[k].values.length + value, 0)]];
      this.put(frameAt(at), "");
      for (const step of [1, -1]) {
        const next = at.map((value, k) => (k === axis ? value + step : value));
        if (next[axis] >= 0 && next[axis] < axes[axis].values.length) this.fetch(frameAt(next));
      }
    }

    pressed(button) {
      if (!this.states) return;
      const edge = this.states.edges[this.state][button];
      if (!edge) {
        this.words.textContent = "No more was recorded from here on. Start again.";
        return;
      }
      this.state = edge[0];
      this.put(this.states.frames[this.states.index[this.state]], edge[1]);
    }

    /** What can be scrolled by hand can be scrolled by keyboard, too. */
    measure() {
      const wide = this.place.scrollWidth > this.place.clientWidth;
      if (wide) this.place.tabIndex = 0;
      else this.place.removeAttribute("tabindex");
      this.root.classList.toggle("frames-wide", wide);
    }

    fetch(frame) {
      if (frame.file) new Image().src = `${this.folder}/${frame.file}`;
    }

    put(frame, said) {
      this.words.textContent = `${said} ${frame.words}`.trim();
      this.wanted = frame;
      if (!frame.file) {
        this.place.innerHTML = frame.html || "";
        return;
      }
      // The old picture stays until the new one is there, so that nothing flickers.
      const image = element("img", { class: "dark-light", alt: frame.alt, width: frame.size[0], height: frame.size[1] });
      image.onload = () => {
        if (this.wanted !== frame) return;
        this.place.replaceChildren(image);
        this.measure();
      };
      image.onerror = () => (this.words.textContent = `${frame.words} (Its picture was not found.)`);
      image.src = `${this.folder}/${frame.file}`;
    }
  }

  const begin = () => document.querySelectorAll(".frames").forEach((root) => new Widget(root));
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin);
  else begin();
})();
