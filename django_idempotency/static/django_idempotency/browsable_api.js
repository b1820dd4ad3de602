// Sends the page's idempotency keys with the forms of the browsable API, one key for each method.
(function () {
  "use strict";

  const page = JSON.parse(document.getElementById("django-idempotency").textContent);
  const submitted = new WeakSet();

  function isThisPage(url) {
    const target = new URL(url || "", location.href);
    return target.origin === location.origin && target.pathname === location.pathname;
  }

  // The key of a submission, or undefined where the method is not guarded.
  function keyOf(event) {
    const form = event.target;
    const button = event.submitter && event.submitter.getAttribute("data-method");
    const method = button || form.getAttribute("data-method") || form.getAttribute("method");
    return isThisPage(form.getAttribute("action"))
      ? page.keys[(method || "GET").toUpperCase()]
      : undefined;
  }

  // Forms that are sent by script: PUT, PATCH, DELETE and raw data.
  if (window.jQuery) {
    window.jQuery.ajaxPrefilter(function (options, original, request) {
      const key = page.keys[(options.type || "GET").toUpperCase()];
      if (key && isThisPage(options.url)) {
        request.setRequestHeader(key.header, key.key);
      }
    });
  }

  // A second click while the first one is on its way asks for nothing new.
  document.addEventListener(
    "submit",
    function (event) {
      if (!keyOf(event)) {
        return;
      }
      if (submitted.has(event.target)) {
        event.preventDefault();
        event.stopImmediatePropagation();
      }
      submitted.add(event.target);
    },
    true
  );

  // The form that a browser would send by itself, without any header field of ours.
  document.addEventListener("submit", function (event) {
    const key = keyOf(event);
    if (!key || event.defaultPrevented) {
      return;
    }
    event.preventDefault();
    const form = event.target;
    const url = form.getAttribute("action") || location.href;
    const fields = new FormData(form);
    fetch(url, {
      method: "POST",
      body: form.getAttribute("enctype") === "multipart/form-data" ? fields : new URLSearchParams(fields),
      headers: { Accept: "text/html; q=1.0, */*", [key.header]: key.key },
    })
      .then(function (response) {
        if (!(response.headers.get("Content-Type") || "").toLowerCase().startsWith("text/html")) {
          location.href = url;
          return undefined;
        }
        return response.text().then(function (html) {
          document.open("text/html");
          document.write(html);
          document.close();
          history.replaceState({}, "", url);
          scrollTo(0, 0);
        });
      })
      .catch(function () {
        submitted.delete(form);
        alert(page.unanswered);
      });
  });
})();
