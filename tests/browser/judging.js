// Asked of a page by judging.py: what stands in somebody's way, and how each text stands out.
({
  faults() {
    const seen = (node) => node.offsetParent !== null && getComputedStyle(node).visibility !== "hidden";
    const all = (selector) => [...document.querySelectorAll(selector)].filter(seen);
    const nameOf = (node) => (node.getAttribute("aria-label") || node.textContent || "").trim();
    const faults = [];
    const start = (node) => node.outerHTML.slice(0, 120);
    for (const node of all("button, a")) if (!nameOf(node)) faults.push(`no name: ${start(node)}`);
    for (const node of all("input, select, textarea")) {
      const isNamed = node.labels?.length || node.getAttribute("aria-label");
      if (!isNamed) faults.push(`no label: ${start(node)}`);
    }
    for (const node of all("img, svg")) {
      if (!node.getAttribute("alt") && node.getAttribute("aria-hidden") !== "true") faults.push("a picture without words");
    }
    for (const node of all("table")) {
      if (!node.caption) faults.push("a table without a caption");
      if (!node.querySelector("th[scope=col]")) faults.push("a table without headings");
    }
    for (const node of all("[role=img]")) if (!node.getAttribute("aria-label")) faults.push("a drawing without words");
    if (document.querySelectorAll("h1").length !== 1) faults.push("not one h1");
    for (const landmark of ["header", "nav", "main", "footer"]) {
      if (!document.querySelector(landmark)) faults.push(`no ${landmark}`);
    }
    const ids = [...document.querySelectorAll("[id]")].map((node) => node.id);
    for (const id of new Set(ids)) if (ids.filter((each) => each === id).length > 1) faults.push(`two of #${id}`);
    if (!document.title || !document.documentElement.lang) faults.push("no title or language");
    if (document.querySelector("[tabindex]:not([tabindex='0']):not([tabindex='-1'])")) faults.push("a tab order by hand");
    return faults;
  },

  // The contrast of every text with what is really behind it; colours are mixed where they are glass.
  contrasts() {
    const parse = (text) => (text.match(/[\d.]+/g) || []).map(Number);
    const over = (front, back) => {
      const share = front.length > 3 ? front[3] : 1;
      return [0, 1, 2].map((index) => front[index] * share + back[index] * (1 - share));
    };
    const light = (colour) => {
      const [red, green, blue] = colour.map((value) => {
        const part = value / 255;
        return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
      });
      return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    const behind = (node) => {
      const layers = [];
      for (let each = node; each; each = each.parentElement) {
        layers.push(parse(getComputedStyle(each).backgroundColor));
      }
      return layers.reverse().reduce((back, front) => over(front, back), [255, 255, 255]);
    };
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const found = [];
    while (walker.nextNode()) {
      const node = walker.currentNode.parentElement;
      if (!walker.currentNode.data.trim() || node.offsetParent === null) continue;
      if (node.closest(".unseen, .skip, :disabled")) continue;
      const back = behind(node);
      const front = over(parse(getComputedStyle(node).color), back);
      const [high, low] = [light(front), light(back)].sort((one, other) => other - one);
      found.push([(high + 0.05) / (low + 0.05), walker.currentNode.data.trim().slice(0, 40), node.className]);
    }
    return found;
  },
})
