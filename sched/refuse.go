package sched

import (
	"fmt"
	"strings"
)

// Code is why a task was refused; people read the message.
type Code string

// The codes of a Refusal.
const (
	// UnknownPool: the core was never given the pool.
	UnknownPool Code = "unknown_pool"
	// RequestTooLarge: more than the pool could have even with every loan.
	RequestTooLarge Code = "request_too_large"
	// NoNodeLargeEnough: no machine of the cluster has so much, even empty.
	NoNodeLargeEnough Code = "no_node_large_enough"
	// NoVictims: nothing may be preempted for it.
	NoVictims Code = "no_victims"
	// VictimsInsufficient: all that may be preempted together is not enough.
	VictimsInsufficient Code = "victims_insufficient"
)

// Refusal says why a task neither fits nor may make room.
type Refusal struct {
	Code    Code
	Message string
	// Short is what stays missing when everything that may be preempted is
	// gone: quota, or else room on the node that comes nearest.
	Short Resources
	Tally
}

// Tally counts the live tasks, the newcomer aside, by why they may not be taken.
type Tally struct {
	Considered int
	// Uncounted means that there are too many to count for an answer in time:
	// only Considered is, and of what stays missing it is said how much at least.
	Uncounted      bool
	Eligible       int
	PreemptedIt    int
	Protected      int
	OutrankByLabel int
	CrossPoolOff   int
	// BelowThreshold counts priorities that are too near, in any pool;
	// BelowCrossThreshold those of them in other pools.
	BelowThreshold, BelowCrossThreshold int
	BelowMinScore                       int
	TooOften                            int
	TooFresh                            int
	PoolRate                            int
	Unmanaged                           int
	Unsettled                           int
	OtherCluster                        int
	SharesAgent                         int
}

func (t *Tally) count(v *Candidate, safe Safe) {
	if safe != SafeItself {
		t.Considered++
	}
	switch safe {
	case SafePreemptedIt:
		t.PreemptedIt++
	case SafeProtected:
		t.Protected++
	case SafeOutranks:
		t.OutrankByLabel++
	case SafeCrossPoolOff:
		t.CrossPoolOff++
	case SafeBelowThreshold:
		t.BelowThreshold++
		if v.Reason == CrossPool {
			t.BelowCrossThreshold++
		}
	case SafeLowScore:
		t.BelowMinScore++
	case SafeTooOften:
		t.TooOften++
	case SafeTooFresh:
		t.TooFresh++
	case SafePoolRate:
		t.PoolRate++
	case SafeUnmanaged:
		t.Unmanaged++
	case SafeUnsettled:
		t.Unsettled++
	case SafeOtherCluster:
		t.OtherCluster++
	}
}

// sentence lists the counts: "3 tasks are in protected pools, 2 are …".
func (t *Tally) sentence(p *Policy) string {
	var parts []string
	say := func(n int, one, many string, args ...any) {
		if n == 0 {
			return
		}
		noun, text := "", many
		if n == 1 {
			text = one
		}
		if len(parts) == 0 {
			noun = " tasks"
			if n == 1 {
				noun = " task"
			}
		}
		parts = append(parts, fmt.Sprintf("%d%s ", n, noun)+fmt.Sprintf(text, args...))
	}
	say(t.Protected, "is in a protected pool", "are in protected pools")
	say(t.BelowThreshold-t.BelowCrossThreshold, "in its pool is less than %v priority below it", "in its pool are less than %v priority below it", p.SamePoolPriorityThreshold)
	say(t.BelowCrossThreshold, "in another pool is less than %v priority below it", "in other pools are less than %v priority below it", p.CrossPoolPriorityThreshold)
	say(t.CrossPoolOff, "is in another pool, and cross-pool preemption is off", "are in other pools, and cross-pool preemption is off")
	say(t.OutrankByLabel, "outranks it by label", "outrank it by label")
	say(t.PreemptedIt, "preempted it before", "preempted it before")
	say(t.BelowMinScore, "scores below %v", "score below %v", p.MinPreemptScore)
	say(t.TooOften, "was preempted too often already", "were preempted too often already")
	say(t.TooFresh, "has run for less than %v s", "have run for less than %v s", seconds(Time(p.MinRuntimeSeconds)))
	say(t.PoolRate, "is in a pool that lost enough this minute", "are in pools that lost enough this minute")
	say(t.OtherCluster, "is on another cluster", "are on other clusters")
	say(t.Unmanaged, "holds no quota here", "hold no quota here")
	say(t.Unsettled, "is starting or stopping", "are starting or stopping")
	say(t.SharesAgent, "shares its agent with a safe task", "share their agent with a safe task")
	if len(parts) == 0 {
		return "no other task is running"
	}
	return strings.Join(parts, ", ")
}

func seconds(t Time) string { return string(appendFixed(nil, int64(t), 1000, 0)) }

func unknownPool(n *newcomer) Refusal {
	return Refusal{Code: UnknownPool, Message: fmt.Sprintf("there is no pool %q", n.Pool), Short: n.Request}
}

// neverFits says whether not even waiting can help: more is asked for than all
// capacity the pool could draw on, or than any one machine has.
func (c *Core) neverFits(n *newcomer, pool Pool, p *problem) (Refusal, bool) {
	if !p.quota.IsZero() && !pool.Ceiling.Covers(n.Request) {
		reach, whose := c.reach(pool)
		if short := reach.Lacking(n.Request); !short.IsZero() {
			return Refusal{
				Code:    RequestTooLarge,
				Message: fmt.Sprintf("needs %v; %s can have at most %s", n.Request, whose, reach.of(n.Request)),
				Short:   short,
			}, true
		}
	}
	if p.void || len(p.spots) > 0 {
		return Refusal{}, false
	}
	var nodes nearest
	for _, node := range c.places(&pool, n.Rooms) {
		if node.Held && node.Total.Covers(n.Request) {
			return Refusal{}, false // it is not for ever
		}
		nodes.consider(node.Total.Lacking(n.Request), n.Request)
	}
	if n.Rooms != "" {
		return Refusal{Code: NoNodeLargeEnough, Short: nodes.lack,
			Message: fmt.Sprintf("needs %v in one placement group; none of the %d that pool %s has there is large enough", n.Request, nodes.seen, pool.Name)}, true
	}
	return Refusal{
		Code: NoNodeLargeEnough,
		Message: fmt.Sprintf("needs %v on one node; of the %d in cluster %s even the nearest lacks %v when empty",
			n.Request, nodes.seen, pool.Cluster, nodes.lack),
		Short: nodes.lack,
	}, true
}

// nearest finds the node that lacks the least, as a share of the request.
type nearest struct {
	seen int
	lack Resources
}

func (n *nearest) consider(lack, request Resources) {
	if n.seen == 0 || thousandths(lack, request) < thousandths(n.lack, request) {
		n.lack = lack
	}
	n.seen++
}

// reach is all capacity the pool could ever have, and whose it is: its own,
// with what unprotected pools of its cluster could lend where the policy lets
// tasks be preempted across pools at all.
func (c *Core) reach(pool Pool) (Resources, string) {
	own := "pool " + pool.Name
	if !c.policy.EnableCrossPoolPreemption && len(c.rules.labels) == 0 {
		return pool.Ceiling, own
	}
	sum, lenders := pool.Ceiling, 0
	for _, other := range c.pools {
		if other.Name != pool.Name && other.Cluster == pool.Cluster && !c.rules.protected[other.Name] {
			sum = sum.Add(other.Ceiling)
			lenders++
		}
	}
	if lenders == 0 {
		return sum, own
	}
	return sum, own + ", with loans from all others,"
}

// insufficient refuses for want of victims.
func (c *Core) insufficient(n *newcomer, pool Pool, p *problem, seats []seat, tally Tally) Refusal {
	return c.wanting(n, pool, p, p.short(seats), len(seats) > 0, tally)
}

func (c *Core) wanting(n *newcomer, pool Pool, p *problem, short Resources, some bool, tally Tally) Refusal {
	r := Refusal{Code: NoVictims, Tally: tally, Short: short}
	var b strings.Builder
	if !p.quota.IsZero() {
		fmt.Fprintf(&b, "needs %v; %s is free in pool %s; ", n.Request, pool.Free.of(p.quota), pool.Name)
	} else if !p.void && len(p.spots) == 0 {
		fmt.Fprintf(&b, "needs %v on one node; pool %s has the quota but every node that is large enough is held; ", n.Request, pool.Name)
	} else {
		fmt.Fprintf(&b, "needs %v on one node; pool %s has the quota but no node has the room: the nearest lacks %v; ", n.Request, pool.Name, p.short(nil))
	}
	if some {
		r.Code = VictimsInsufficient
	}
	if tally.Uncounted {
		if some {
			fmt.Fprintf(&b, "preempting all tasks that may be would still leave at least %v missing; there are %d others", r.Short, tally.Considered)
		} else {
			fmt.Fprintf(&b, "nothing may be preempted: each of the %d other tasks is safe from it", tally.Considered)
		}
		r.Message = b.String()
		return r
	}
	why := tally.sentence(&c.policy)
	if !some {
		fmt.Fprintf(&b, "nothing may be preempted: %s", why)
	} else {
		fmt.Fprintf(&b, "preempting all %d tasks that may be would still leave %v missing", tally.Eligible, r.Short)
		if tally.Eligible < tally.Considered {
			fmt.Fprintf(&b, "; %s", why)
		}
	}
	r.Message = b.String()
	return r
}

// short is what stays missing when all these agents are taken: of the quota,
// or else of the room on the node that comes nearest.
func (p *problem) short(taken []seat) Resources {
	f := p.freedBy(taken)
	if quota := f.sum.Lacking(p.need); !quota.IsZero() || p.fitsNow {
		return quota
	}
	var nodes nearest
	for at := range p.spots {
		nodes.consider(f.roomAt(at).Lacking(p.request), p.request)
	}
	return nodes.lack
}
