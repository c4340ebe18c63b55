"""The edge planner on the controller: edges that shall be become lives of edges on nodes (design 7, E 7.4).

`planner` is the actor and what drives it: its mailbox, a tick, what edges processes tell. `orders` is what an operator
wants of it, in the words of `wish`, and `lines` what it shows. What must be found again is in `state`, how that is made
durable and told to the chain in `core`; what is only known is in `view` (`ends` for those of a life in hand), filled by
`processes` and `runs`, which ask for it. Of both `view` makes the `situation` of one edge, `plan` says the one step
that follows from it, and `acts` carries it out, with `judging` for the gate's part. Every decision is in `plan`, which
is pure.
"""
