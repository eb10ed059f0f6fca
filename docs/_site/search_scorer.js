// How the search of the site weighs what it finds: pages for users before those for whoever changes the code.
// Words in the text of a page all weigh the same, so a page to learn from comes first among those; what has
// them in its title (15) stays above.
var Scorer = {
  score: ([docname, , , , score]) => {
    if (/^(decisions|design|spec-coverage|reliability|benchmarks)/.test(docname)) return score - 20;
    if (/^tutorials/.test(docname)) return score + 4;
    if (/^(how-to|tour)/.test(docname)) return score + 2;
    return score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
