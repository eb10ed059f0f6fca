// How the search of the site weighs what it finds: pages for users before those for whoever changes the code.
var Scorer = {
  score: ([docname, , , , score]) => (/^(decisions|design|spec-coverage|reliability|benchmarks)/.test(docname) ? score - 20 : score),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
