// What tools/walk_site.py asks of each page of the site.

/** Numbers of a colour that the browser has computed: red, green, blue (0 to 255) and alpha (0 to 1). */
function channels(color) {
  const numbers = (color.match(/[\d.]+/g) || [0, 0, 0, 0]).map(Number);
  return numbers.length < 4 ? [...numbers.slice(0, 3), 1] : numbers;
}

function over(above, below) {
  return [0, 1, 2].map((i) => above[i] * above[3] + below[i] * (1 - above[3])).concat(1);
}

function luminance(color) {
  const [r, g, b] = color.slice(0, 3).map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** What lies behind an element: the colours of those around it, laid over each other. */
function behind(element) {
  const layers = [];
  for (let each = element; each; each = each.parentElement) {
    const color = channels(getComputedStyle(each).backgroundColor);
    if (color[3] > 0) layers.push(color);
    if (color[3] === 1) break;
  }
  const page = matchMedia("(prefers-color-scheme: dark)").matches ? [0, 0, 0, 1] : [255, 255, 255, 1];
  return layers.reverse().reduce((below, above) => over(above, below), page);
}

function contrast(element) {
  const style = getComputedStyle(element);
  const back = behind(element);
  const text = channels(element.namespaceURI.endsWith("svg") ? style.fill : style.color);
  const [high, low] = [luminance(over(text, back)), luminance(back)].sort((a, b) => b - a);
  return (high + 0.05) / (low + 0.05);
}

function shown(element) {
  const box = element.getBoundingClientRect();
  return box.width > 1 && box.height > 1 && element.checkVisibility({ visibilityProperty: true, opacityProperty: true });
}

function path(element) {
  const steps = [];
  for (let each = element; each && steps.length < 4 && each.tagName !== "BODY"; each = each.parentElement)
    steps.unshift(each.tagName.toLowerCase() + [...each.classList].map((name) => `.${name}`).join(""));
  return steps.join(" > ");
}

/** Text that is hard to read: one line for each kind of element, with an example. */
function faint(least) {
  const kinds = new Map();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || /^(SCRIPT|STYLE|NOSCRIPT|TITLE)$/i.test(element.tagName) || !shown(element)) continue;
    const { fontSize, fontWeight } = getComputedStyle(element);
    const large = parseFloat(fontSize) >= 24 || (parseFloat(fontSize) >= 18.66 && Number(fontWeight) >= 700);
    const ratio = contrast(element);
    if (ratio < (large ? 3 : least)) {
      const kind = `${path(element)} ${ratio.toFixed(1)}`;
      if (!kinds.has(kind)) kinds.set(kind, walker.currentNode.data.trim().slice(0, 30));
    }
  }
  return [...kinds].map(([kind, example]) => `${kind} (${example})`);
}

/** What makes the page wider than the screen, the innermost elements. The theme's column scrolls in place of the page. */
function wide() {
  const columns = [document.scrollingElement, ...document.querySelectorAll(".content")];
  if (innerWidth <= screen.width && columns.every((each) => each.scrollWidth <= each.clientWidth)) return [];
  // What lies in a box of its own that scrolls, such as a table, widens nothing.
  const own = (each) => each.closest("pre, .table-wrapper, .drawing, .sidebar-drawer, .toc-drawer");
  const beyond = [...document.querySelectorAll(".content *")].filter((each) => !own(each) && each.getBoundingClientRect().right > screen.width + 1);
  const inner = beyond.filter((each) => ![...each.children].some((child) => beyond.includes(child)));
  return [`${Math.max(...columns.map((each) => each.scrollWidth))} px`, ...inner.slice(0, 3).map((each) => `${path(each)} (${each.textContent.slice(0, 40)})`)];
}

/** Pictures that have not loaded; those that wait to be scrolled to are loaded first. */
async function pictures() {
  const images = [...document.images];
  for (const image of images) image.loading = "eager";
  await Promise.all(images.map((image) => image.decode().catch(() => {})));
  return images.filter((image) => !image.naturalWidth || !image.alt).map((image) => `${image.src} (${image.alt})`);
}

async function look(least) {
  return {
    faint: faint(least),
    wide: wide(),
    pictures: await pictures(),
    drawings: [...document.querySelectorAll(".highlight-mermaid")].map((each) => each.innerText.slice(0, 40)),
  };
}

/** Of each block of code what its button copies; a block without a button copies nothing. */
async function copies() {
  const blocks = [];
  for (const block of document.querySelectorAll("div.highlight > pre")) {
    const kind = (block.closest("[class*='highlight-']").className.match(/highlight-(\S+)/) || [])[1];
    const button = block.parentElement.querySelector("button.copybtn");
    let copied = "";
    if (button) {
      await navigator.clipboard.writeText("nothing was copied");
      button.click();
      copied = await navigator.clipboard.readText();
    }
    blocks.push({ kind, shown: block.textContent, copied });
  }
  return blocks;
}

/** The addresses that the search has found, once it has ended. */
async function found() {
  const ended = () => /finished|did not match/i.test(document.querySelector("#search-results p.search-summary")?.textContent || "");
  for (let tries = 0; !ended() && tries < 200; tries++) await new Promise((done) => setTimeout(done, 50));
  return [...document.querySelectorAll("#search-results ul.search li > a")].map((each) => each.href);
}
