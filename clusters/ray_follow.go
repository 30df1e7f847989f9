package clusters

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/coder/websocket"
)

const (
	followPiece = 256 << 10
	followEvery = 500 * time.Millisecond // between looks for more
	followPing  = 30 * time.Second
	maxMessage  = 32 << 20 // bytes of one message of Ray's: ten lines, however long
)

// Follow hands over what a job prints from an offset on (negative: from the end), until it is over and
// all was given, give fails or ctx ends. After an error the caller may go on from the last next.
//
// Where the agent of the job's node can be reached, its file is looked at again and again. Elsewhere Ray's
// WebSocket pushes, from the begin on; should that not work, the log is read again and again.
func (r *Ray) Follow(ctx context.Context, j JobInfo, offset int64, give func(text string, next int64) error) error {
	f := &follower{ray: r, job: j, next: offset, give: give}
	if err := f.await(ctx); err != nil {
		return err
	}
	if offset < 0 || r.reachesAgent(f.job) {
		// This also finds out whether the agent can be reached.
		if _, err := f.read(ctx); err != nil {
			return err
		}
	}
	for pushes := true; ; {
		over := rayEnded(f.job.Status)
		if pushes && !over && !r.reachesAgent(f.job) {
			err := f.pushed(ctx)
			if ctx.Err() != nil || errors.Is(err, errGive) {
				return errors.Join(ctx.Err(), err)
			}
			pushes = err == nil // it just ended: mostly because the job did
		}
		more, err := f.read(ctx)
		switch {
		case err != nil:
			return err
		case more:
			continue
		case over: // it was over before the last look
			return nil
		}
		if err := pause(ctx, followEvery); err != nil {
			return err
		}
		if f.job, err = r.Job(ctx, f.job.SubmissionID); err != nil {
			return err
		}
	}
}

// follower is one Follow on its way.
type follower struct {
	ray  *Ray
	job  JobInfo
	next int64
	give func(text string, next int64) error
}

// errGive marks that the receiver failed.
var errGive = errors.New("the log could not be handed on")

func (f *follower) hand(text string, next int64) error {
	f.next = next
	if text == "" {
		return nil
	}
	if err := f.give(text, next); err != nil {
		return fmt.Errorf("%w: %w", errGive, err)
	}
	return nil
}

// await returns once the job runs somewhere, or is over.
func (f *follower) await(ctx context.Context) (err error) {
	for {
		if f.job, err = f.ray.Job(ctx, f.job.SubmissionID); err != nil {
			return err
		}
		if f.job.NodeID != "" || rayEnded(f.job.Status) {
			return nil
		}
		if err := pause(ctx, 2*followEvery); err != nil {
			return err
		}
	}
}

// read looks once for more.
func (f *follower) read(ctx context.Context) (more bool, err error) {
	text, next, err := f.ray.Logs(ctx, f.job, f.next, followPiece)
	if err != nil {
		return false, err
	}
	more = text != ""
	return more, f.hand(text, next)
}

// pushed hands over what Ray pushes until Ray ends that.
func (f *follower) pushed(ctx context.Context) error {
	token, err := f.ray.token()
	if err != nil {
		return err
	}
	header := http.Header{}
	if token != "" {
		header.Set("Authorization", "Bearer "+token)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	dial, opened := bounded(ctx, f.ray.timeout)
	conn, _, err := websocket.Dial(dial, f.ray.base+jobPath(f.job.SubmissionID)+"/logs/tail", &websocket.DialOptions{HTTPClient: f.ray.streams, HTTPHeader: header})
	opened()
	if err != nil {
		return err
	}
	defer conn.CloseNow()
	conn.SetReadLimit(maxMessage)
	go func() { // a connection that is dead without a word
		for pause(ctx, followPing) == nil {
			answer, done := bounded(ctx, f.ray.timeout)
			if conn.Ping(answer) != nil {
				cancel()
			}
			done()
		}
	}()
	for at := int64(0); ; {
		_, message, err := conn.Read(ctx)
		switch {
		case websocket.CloseStatus(err) == websocket.StatusNormalClosure:
			return nil
		case err != nil:
			return err
		}
		at += int64(len(message))
		if at <= f.next {
			continue
		}
		news := message[max(int64(len(message))-(at-f.next), 0):]
		if err := f.hand(strings.ToValidUTF8(string(news), "\uFFFD"), at); err != nil {
			return err
		}
	}
}

// pause waits, or gives the reason why ctx ended.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
