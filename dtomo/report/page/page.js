"use strict";
for (const box of document.querySelectorAll(".stack")) {
  const planes = JSON.parse(box.querySelector("script").textContent);
  const figures = [...box.querySelectorAll(".plane")];
  const shown = {};
  const byAxis = {};

  figures.forEach((figure, number) => {
    const plane = planes[number];
    const image = figure.querySelector("img");
    plane.pictures[plane.now] = image.src;
    shown[plane.axis] = plane.at[plane.now];
    byAxis[plane.axis] = { plane, slider: figure.querySelector("input") };
  });

  const lines = () => figures.forEach((figure, number) => {
    const [up, across] = planes[number].sides;
    const [height, width] = planes[number].size;
    const place = (at, size) => `${(100 * (at + 0.5)) / size}%`;
    if (up in shown) figure.querySelector("i.across").style.top = place(shown[up], height);
    if (across in shown) figure.querySelector("i.up").style.left = place(shown[across], width);
  });

  const show = (figure, plane, index) => {
    const at = plane.at[index];
    shown[plane.axis] = at;
    figure.querySelector("img").src = plane.pictures[index];
    const far = plane.step ? ` · ${Number((at * plane.step).toPrecision(4))} ${plane.unit}` : "";
    figure.querySelector("output").textContent = `${plane.axis} = ${at} of ${plane.length}${far}`;
    lines();
  };

  const nearest = (plane, at) => {
    let best = 0;
    plane.at.forEach((value, index) => { if (Math.abs(value - at) < Math.abs(plane.at[best] - at)) best = index; });
    return best;
  };

  figures.forEach((figure, number) => {
    const plane = planes[number];
    const slider = figure.querySelector("input");
    if (slider) slider.addEventListener("input", () => show(figure, plane, Number(slider.value)));
    figure.querySelector(".frame").addEventListener("click", (event) => {
      const area = event.currentTarget.getBoundingClientRect();
      const parts = [(event.clientY - area.top) / area.height, (event.clientX - area.left) / area.width];
      plane.sides.forEach((side, place) => {
        const other = byAxis[side];
        if (!other || !other.slider) return;
        other.slider.value = nearest(other.plane, parts[place] * plane.size[place]);
        other.slider.dispatchEvent(new Event("input"));
      });
    });
  });

  const knob = (name) => box.querySelector(`.knobs [name=${name}]`);
  const look = () => {
    const filter = `brightness(${knob("brightness").value}) contrast(${knob("contrast").value})`;
    for (const image of box.querySelectorAll("img")) image.style.filter = filter;
    const lined = knob("lines");
    if (lined) for (const line of box.querySelectorAll(".frame i")) line.hidden = !lined.checked;
  };
  for (const input of box.querySelectorAll(".knobs input")) input.addEventListener("input", look);
  box.querySelector(".knobs").hidden = false;
  lines();
}
