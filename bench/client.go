package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// client is one connection that sends a request after the answer to the one before.
// It speaks HTTP by hand: the client's share of two cores is part of every figure.
type client struct {
	conn   net.Conn
	in     *bufio.Reader
	head   []byte // what all requests have in common
	out    []byte
	answer []byte
}

func dial(addr string) (*client, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &client{conn: conn, in: bufio.NewReader(conn),
		head: fmt.Appendf(nil, " HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: ", addr, benchToken)}, nil
}

func (c *client) close() { _ = c.conn.Close() }

var contentLength = []byte("content-length:")

// post sends a body and returns status and answer; the answer is valid until the next call.
func (c *client) post(path string, body []byte) (int, []byte, error) {
	c.out = append(append(append(c.out[:0], "POST "...), path...), c.head...)
	c.out = strconv.AppendInt(c.out, int64(len(body)), 10)
	c.out = append(append(c.out, "\r\n\r\n"...), body...)
	if _, err := c.conn.Write(c.out); err != nil {
		return 0, nil, err
	}
	first, err := c.in.ReadSlice('\n')
	if err != nil {
		return 0, nil, err
	}
	if len(first) < len("HTTP/1.1 200") {
		return 0, nil, fmt.Errorf("an answer that is not HTTP: %q", first)
	}
	status, err := strconv.Atoi(string(first[9:12]))
	if err != nil {
		return 0, nil, fmt.Errorf("an answer that is not HTTP: %q", first)
	}
	length := -1
	for {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return 0, nil, err
		}
		if len(line) <= 2 {
			break
		}
		if len(line) > len(contentLength) && bytes.EqualFold(line[:len(contentLength)], contentLength) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(line[len(contentLength):]))); err != nil {
				return 0, nil, err
			}
		}
	}
	if length < 0 {
		return 0, nil, errors.New("an answer without Content-Length")
	}
	if cap(c.answer) < length {
		c.answer = make([]byte, length)
	}
	c.answer = c.answer[:length]
	_, err = io.ReadFull(c.in, c.answer)
	return status, c.answer, err
}

// load is submissions by many connections at once, for a time.
type load struct {
	connections int
	// body is the i-th submission of connection c.
	body func(c, i int) []byte
	each time.Duration
	// total ends the load after so many instead; 0: by time.
	total int64
}

// rate is what a load came to.
type rate struct {
	perSecond float64
	cpu       string // what it cost whom, for people
	n         int64
	taken     int64 // all in all, before and after the measurement too
}

// run sends the load to a server and fails unless every submission is taken.
func (l load) run(b *bench, s *served) (rate, error) {
	var sent, done atomic.Int64
	var over atomic.Bool
	var wg sync.WaitGroup
	errs := make(chan error, l.connections)
	for c := range l.connections {
		wg.Go(func() {
			conn, err := dial(s.addr)
			if err != nil {
				errs <- err
				return
			}
			defer conn.close()
			for i := 0; !over.Load() && (l.total == 0 || sent.Add(1) <= l.total); i++ {
				status, answer, err := conn.post("/api/v1/tasks", l.body(c, i))
				if err == nil && status != 201 {
					err = fmt.Errorf("a submission was answered with %d: %.300s", status, answer)
				}
				if err != nil {
					errs <- err
					over.Store(true)
					return
				}
				done.Add(1)
			}
		})
	}
	if l.total == 0 {
		time.Sleep(time.Second) // connections are up, the batch size has settled
	}
	before, cpu, began := done.Load(), b.cpu(s), time.Now()
	if l.total == 0 {
		time.Sleep(l.each)
	} else {
		wg.Wait()
	}
	n, took := done.Load()-before, time.Since(began)
	out := rate{perSecond: float64(n) / took.Seconds(), cpu: b.cpu(s).since(cpu, n), n: n}
	over.Store(true)
	wg.Wait()
	out.taken = done.Load()
	select {
	case err := <-errs:
		return out, err
	default:
		return out, nil
	}
}
