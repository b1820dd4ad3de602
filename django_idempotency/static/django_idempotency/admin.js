// Buttons and boxes of the admin that need a script: without one they stay hidden.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  for (const button of document.querySelectorAll("[data-copies]")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const text = document.getElementById(button.dataset.copies);
      if (navigator.clipboard) {
        await navigator.clipboard.writeText(text.textContent);
      } else { // the page came over plain HTTP
        getSelection().selectAllChildren(text);
        document.execCommand("copy");
      }
      button.textContent = button.dataset.copied;
    });
  }

  const all = document.getElementById("idempotency-all");
  if (all) {
    const boxes = [...all.form.querySelectorAll("[name=seen]")];
    all.hidden = false;
    all.addEventListener("change", () => {
      for (const box of boxes) box.checked = all.checked;
    });
    all.form.addEventListener("change", () => {
      all.checked = boxes.every((box) => box.checked);
    });
  }
});
