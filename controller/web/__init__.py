"""The page of `cotenant web`: a process of its own that is a client of the controller, and serves one person.

Rule: it knows what any command line of its user knows, and may do what that user may: the controller decides.
Nothing imports it; the verb starts it as a program. A page is one module in `pages/`: what it asks, a pure
function from the answers to what its template shows, and the template.
"""
