package bridgetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/schedulemesh/schedulemesh/bridge"
)

// group asks for a placement group, of which nothing is left after the test.
func (s *scene) group(bundles ...bridge.Resources) bridge.GroupRequest {
	if len(bundles) == 0 {
		bundles = []bridge.Resources{{"cpu": one, "memory": 64}}
	}
	req := bridge.GroupRequest{Name: fmt.Sprintf("sm-t%d-%d.1", time.Now().UnixNano(), launches.Add(1)), Bundles: bundles, Timeout: patience}
	s.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.RemoveGroup(ctx, req.Name, patience); err != nil {
			s.t.Errorf("cleaning up %s: %v", req.Name, err)
		}
	})
	return req
}

// made makes a placement group.
func (s *scene) made(bundles ...bridge.Resources) bridge.GroupRequest {
	s.t.Helper()
	req := s.group(bundles...)
	if _, err := s.EnsureGroup(s.ctx, req); err != nil {
		s.t.Fatal(err)
	}
	return req
}

// inGroup asks for an agent in a group.
func (s *scene) inGroup(g bridge.GroupRequest, class string) bridge.LaunchRequest {
	req := s.request(class)
	req.Group = &g
	return req
}

// listedGroup is a group in the list; its State is "" when it is not there.
func (s *scene) listedGroup(name string) bridge.Group {
	s.t.Helper()
	list, err := s.Groups(s.ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, g := range list {
		if g.Name == name {
			return g
		}
	}
	return bridge.Group{}
}

func (s *scene) removeGroup(name string) {
	s.t.Helper()
	if err := s.RemoveGroup(s.ctx, name, patience); err != nil {
		s.t.Fatal(err)
	}
	if g := s.listedGroup(name); g.State != "" {
		s.t.Errorf("after its removal it is listed: %+v", g)
	}
}

// groupFails wants an ensure to answer a code, the same one again, and nothing to be left.
func (s *scene) groupFails(code bridge.Code, req bridge.GroupRequest) {
	s.t.Helper()
	_, err := s.EnsureGroup(s.ctx, req)
	var e *bridge.Error
	if !errors.As(err, &e) || e.Code != code || e.Unknown || !strings.Contains(e.Message, req.Name) {
		s.t.Fatalf("it answered %v, want %s, knowing it and naming the group", err, code)
	}
	if g := s.listedGroup(req.Name); g.State != "" {
		s.t.Errorf("it is left: %+v", g)
	}
	if _, again := s.EnsureGroup(s.ctx, req); bridge.CodeOf(again) != code {
		s.t.Errorf("asked again it answers %v, want the same", again)
	}
}

func (s *scene) groupMade() {
	req := s.group(bridge.Resources{"cpu": one, "memory": 64}, bridge.Resources{"cpu": one / 2})
	got := make([]bridge.Group, 4)
	var all sync.WaitGroup
	for i := range got {
		all.Go(func() {
			g, err := s.EnsureGroup(s.ctx, req)
			if err != nil {
				s.t.Error(err)
			}
			got[i] = g
		})
	}
	all.Wait()
	nodes, err := s.Nodes(s.ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	listed := s.listedGroup(req.Name)
	for _, g := range append(got, listed) {
		if g.Name != req.Name || g.State != bridge.GroupCreated || len(g.Bundles) != 2 || g.Bundles[0]["memory"] != 64 || len(g.Nodes) != 2 || !slices.Equal(g.Nodes, listed.Nodes) {
			s.t.Errorf("%+v", g)
		}
	}
	for _, id := range listed.Nodes {
		if !slices.ContainsFunc(nodes, func(n bridge.Node) bool { return n.ID == id && n.Alive }) {
			s.t.Errorf("node %s is not among %+v", id, nodes)
		}
	}
	s.removeGroup(req.Name)
}

func (s *scene) groupNoRoom() {
	s.launch(s.request("Counter"))
	req := s.group(s.wholeNode())
	req.Timeout = 500 * time.Millisecond
	s.groupFails(bridge.CodeGroupTimeout, req)
}

func (s *scene) groupTooBig() {
	began := time.Now()
	s.groupFails(bridge.CodeGroupTimeout, s.group(bridge.Resources{"cpu": 1_000_000_000}))
	packed := s.group(bridge.Resources{"cpu": 900_000}, bridge.Resources{"cpu": 900_000})
	packed.Strategy = "STRICT_PACK"
	s.groupFails(bridge.CodeGroupTimeout, packed)
	apart := s.group(slices.Repeat([]bridge.Resources{{"cpu": 1}}, 200)...)
	apart.Strategy = "STRICT_SPREAD"
	s.groupFails(bridge.CodeGroupTimeout, apart)
	s.quick("the refusals", began)
}

func (s *scene) groupRoomComes() {
	first := s.launch(s.filling())
	req := s.group()
	done := make(chan error, 1)
	go func() {
		_, err := s.EnsureGroup(s.ctx, req)
		done <- err
	}()
	s.until("the group is on its way", func() bool { return s.listedGroup(req.Name).State == bridge.GroupPending })
	if err := s.Kill(s.ctx, first, patience); err != nil {
		s.t.Fatal(err)
	}
	if err := <-done; err != nil {
		s.t.Fatal(err)
	}
}

// wholeNode is all that the largest node has: while anything runs there is no room for
// it, whatever others begin or end meanwhile.
func (s *scene) wholeNode() bridge.Resources {
	s.t.Helper()
	nodes, err := s.Nodes(s.ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	most := int64(0)
	for _, n := range nodes {
		if n.Alive {
			most = max(most, n.Total["cpu"])
		}
	}
	return bridge.Resources{"cpu": most}
}

func (s *scene) groupReused() {
	filling := s.filling()
	whole := s.made(filling.Resources)
	first, err := s.Launch(s.ctx, s.inGroup(whole, "Counter"))
	if err != nil {
		s.t.Fatal(err)
	}
	if listed := s.listedGroup(whole.Name); !slices.Equal(first.GroupNodes, listed.Nodes) || first.NodeID != listed.Nodes[0] {
		s.t.Errorf("%+v in %+v", first, listed)
	}
	// The group has all the room there is: nobody else gets any, who sits in it does.
	none := s.request("Counter")
	none.Resources, none.RoomTimeout = s.wholeNode(), 300*time.Millisecond
	if nodes, err := s.Nodes(s.ctx); err == nil && len(nodes) == 1 {
		s.failsWith(bridge.CodeNoRoom, none)
	}
	if err := s.Kill(s.ctx, first.LaunchID, patience); err != nil {
		s.t.Fatal(err)
	}
	next := s.inGroup(whole, "Counter")
	next.Resources = filling.Resources
	second, err := s.Launch(s.ctx, next)
	if err != nil {
		s.t.Fatal(err)
	}
	if second.PID == first.PID || !slices.Equal(second.GroupNodes, first.GroupNodes) {
		s.t.Errorf("%+v after %+v", second, first)
	}
	s.removeGroup(whole.Name)
	s.launch(s.filling()) // all the room is back
}

func (s *scene) groupCut() {
	g := s.made(bridge.Resources{"cpu": one}, bridge.Resources{"cpu": 2 * one})
	req := s.inGroup(g, "Counter")
	req.Resources = bridge.Resources{"cpu": 3 * one}
	s.launch(req)
	if a := s.status(req.LaunchID); a.State != bridge.StateReady || a.Resources["cpu"] != 3*one {
		s.t.Errorf("%+v", a)
	}
}

func (s *scene) groupShared() {
	g := s.made(bridge.Resources{"cpu": one}, bridge.Resources{"cpu": 2 * one})
	for range 3 {
		s.launch(s.inGroup(g, "Counter"))
	}
	more := s.inGroup(g, "Counter")
	more.RoomTimeout = 300 * time.Millisecond
	s.failsWith(bridge.CodeNoRoom, more)
	if listed := s.listedGroup(g.Name); listed.State != bridge.GroupCreated {
		s.t.Errorf("%+v", listed)
	}
}

func (s *scene) groupLaunch() {
	g := s.group()
	req := s.inGroup(g, "Counter")
	l, err := s.Launch(s.ctx, req)
	if err != nil || len(l.GroupNodes) != 1 || l.GroupNodes[0] != l.NodeID {
		s.t.Fatalf("%+v, %v", l, err)
	}
	if listed := s.listedGroup(g.Name); listed.State != bridge.GroupCreated {
		s.t.Errorf("%+v", listed)
	}
	s.removeGroup(g.Name)
	s.launch(s.request("Counter"))
	late := s.group(s.wholeNode())
	late.Timeout = 500 * time.Millisecond
	s.failsWith(bridge.CodeGroupTimeout, s.inGroup(late, "Counter"))
	if listed := s.listedGroup(late.Name); listed.State != "" {
		s.t.Errorf("it is left: %+v", listed)
	}
}

func (s *scene) groupRemoved() {
	g := s.made()
	id := s.launch(s.inGroup(g, "Counter"))
	f := s.followNow()
	s.removeGroup(g.Name)
	f.of(id, bridge.EventAgentDied)
	if a := s.status(id); a.State != bridge.StateGone {
		s.t.Errorf("%+v", a)
	}
	s.groupFails(bridge.CodeGroupLost, g)
	s.failsWith(bridge.CodeGroupLost, s.inGroup(g, "Counter"))
	s.removeGroup(g.Name)
	never := s.group()
	s.removeGroup(never.Name)
	s.groupFails(bridge.CodeGroupLost, never)
}

func (s *scene) groupRemovedEarly() {
	s.launch(s.request("Counter"))
	req := s.group(s.wholeNode())
	answers := make(chan error, 2)
	go func() { _, err := s.EnsureGroup(s.ctx, req); answers <- err }()
	s.until("the group is on its way", func() bool { return s.listedGroup(req.Name).State == bridge.GroupPending })
	inIt := s.inGroup(req, "Counter")
	go func() { _, err := s.Launch(s.ctx, inIt); answers <- err }()
	s.until("so is the launch", func() bool { return s.status(inIt.LaunchID).State == bridge.StateLaunching })
	s.removeGroup(req.Name)
	for range 2 {
		if err := <-answers; !errors.Is(err, bridge.ErrGroupLost) {
			s.t.Errorf("%v", err)
		}
	}
}

func (s *scene) groupLost() {
	kept, removed := s.made(), s.made()
	f := s.followNow()
	s.removeGroup(removed.Name) // of this nothing is told
	id := s.launch(s.inGroup(kept, "Counter"))
	s.LoseGroup(s.t, kept.Name)
	e := f.next(func(e bridge.Event) bool { return e.Type == bridge.EventGroupLost })
	if e.Name != kept.Name || e.Reason == "" {
		s.t.Errorf("%+v", e)
	}
	s.until("its agent is gone", func() bool { return s.status(id).State == bridge.StateGone })
	s.groupFails(bridge.CodeGroupLost, kept)
	s.launch(s.filling())
	select {
	case e := <-f.events:
		if e.Type == bridge.EventGroupLost {
			s.t.Errorf("told again: %+v", e)
		}
	default:
	}
}

func (s *scene) groupRestart() {
	g := s.made()
	id := s.launch(s.inGroup(g, "Counter"))
	before := s.listedGroup(g.Name)
	pid := s.status(id).PID
	s.Restart(s.t)
	if after := s.listedGroup(g.Name); after.State != bridge.GroupCreated || !slices.Equal(after.Nodes, before.Nodes) || after.Bundles[0]["memory"] != 64 {
		s.t.Errorf("%+v, before %+v", after, before)
	}
	if _, err := s.EnsureGroup(s.ctx, g); err != nil {
		s.t.Error(err)
	}
	again := s.inGroup(g, "Counter")
	again.LaunchID = id
	if l, err := s.Launch(s.ctx, again); err != nil || l.PID != pid || len(l.GroupNodes) != 1 {
		s.t.Errorf("%+v, %v", l, err)
	}
	full := s.inGroup(g, "Counter") // the agent that was found sits in it
	full.RoomTimeout = 300 * time.Millisecond
	s.failsWith(bridge.CodeNoRoom, full)
	if err := s.Kill(s.ctx, id, patience); err != nil {
		s.t.Fatal(err)
	}
	s.launch(s.inGroup(g, "Counter"))
	s.removeGroup(g.Name)
	s.launch(s.filling())
}

func (s *scene) groupsApart() {
	g := s.made()
	other := s.Other(s.t, s.Deployment+"-other")
	if list, err := other.Groups(s.ctx); err != nil || len(list) != 0 {
		s.t.Errorf("the other deployment lists %+v, %v", list, err)
	}
	if err := other.RemoveGroup(s.ctx, g.Name, patience); err != nil {
		s.t.Error(err)
	}
	if listed := s.listedGroup(g.Name); listed.State != bridge.GroupCreated {
		s.t.Errorf("after the other's removal: %+v", listed)
	}
}

func (s *scene) badGroups() {
	for what, spoil := range map[string]func(*bridge.GroupRequest){
		"no name":           func(r *bridge.GroupRequest) { r.Name = "" },
		"NUL in the name":   func(r *bridge.GroupRequest) { r.Name = "a\x00" },
		"no bundles":        func(r *bridge.GroupRequest) { r.Bundles = nil },
		"an empty bundle":   func(r *bridge.GroupRequest) { r.Bundles = []bridge.Resources{{"cpu": one}, {"cpu": 0}} },
		"a negative bundle": func(r *bridge.GroupRequest) { r.Bundles = []bridge.Resources{{"cpu": -one}} },
		"a strategy":        func(r *bridge.GroupRequest) { r.Strategy = "TIGHT" },
		"a timeout":         func(r *bridge.GroupRequest) { r.Timeout = -1 },
	} {
		req := s.group()
		name := req.Name
		spoil(&req)
		if _, err := s.EnsureGroup(s.ctx, req); !errors.Is(err, bridge.ErrBadRequest) || bridge.IsUnknown(err) {
			s.t.Errorf("%s: %v", what, err)
		}
		if _, err := s.Launch(s.ctx, s.inGroup(req, "Counter")); !errors.Is(err, bridge.ErrBadRequest) {
			s.t.Errorf("%s, in a launch: %v", what, err)
		}
		if g := s.listedGroup(name); g.State != "" {
			s.t.Errorf("%s: %+v is there", what, g)
		}
	}
}
