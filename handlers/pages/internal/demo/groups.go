package demo

import (
	"time"

	"github.com/schedulemesh/schedulemesh/web"
)

// groups are the placement groups of a pool where training, rewards and rollouts meet.
func groups(at func(time.Duration) time.Time) web.Groups {
	one := func(n, tier, state string, size web.Resources, uses int, who ...web.Sitter) web.Group {
		g := web.Group{Name: "sm-0192f0c4-8a3e-7c51-b1de-2f0f6a9c3d1" + n + ".1", Tier: tier, State: state, Size: size, Bundles: 1, Uses: uses, Reuses: max(0, uses-1), Sitters: who}
		if state == "idle" || state == "occupied" || state == "releasing" {
			g.Nodes, g.Since = []string{"gpu-04"}, at(time.Duration(uses)*37*time.Minute)
		}
		return g
	}
	sits := func(id string, s web.State) web.Sitter { return web.Sitter{Task: id, Agent: id + ".1", State: s} }
	out := web.Groups{Enabled: true, Held: gpu(28, 211, 964), Reserves: gpu(16, 112, 896), Unused: gpu(9, 64, 512), MayBeMade: 4, Waiting: 1, Made: 31, Gone: 24, Reused: 118, Items: []web.Group{
		one("0", "reserved", "occupied", gpu(2, 16, 128), 40, sits("reward-07", web.Running)),
		one("1", "reserved", "idle", gpu(8, 64, 512), 12),
		one("2", "reserved", "failed", gpu(16, 128, 1024), 0),
		one("3", "reserved", "creating", gpu(2, 16, 128), 0),
		one("4", "dynamic", "occupied", gpu(1, 8, 64), 9, sits("rollout-112", web.Preempting), sits("rollout-113", web.Launching)),
		one("5", "dynamic", "occupied", gpu(1, 8, 64), 2, web.Sitter{Agent: "warm-spare-1", State: web.Running}),
		one("6", "dynamic", "releasing", gpu(1, 8, 64), 3),
	}}
	out.Items[1].Bundles, out.Items[1].Strategy, out.Items[1].Nodes = 4, "SPREAD", []string{"gpu-02", "gpu-03", "gpu-05", "gpu-06"}
	out.Items[2].Reason = "no machine had room for it within 30 s"
	out.Items[5].Leaving, out.Items[5].Reason = true, "more than the pool may have"
	out.Items[6].Reason = "nobody sat in it for 1 min"
	return out
}
