// Checks small histories of one log with porcupine, whose verdicts are compared with those of topics_history.
//
// Each line of standard input is a history: a JSON array of operations. The answer is a line "true" or "false". The
// state is (tail, chain): the last seq, and a hash over all bodies, so that a read proves everything before it. An
// operation of unknown outcome returns after all others: then it may take effect at any time, and also after every
// read, which nothing can tell from never. Operations that certainly failed are not in the input.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"os"

	"github.com/anishathalye/porcupine"
)

type operation struct {
	Kind   string // append, read, state
	Client int
	Call   int64
	Return int64    // -1: unknown
	Bodies []string // of an append, or those that a read showed
	First  int      // of an append
	Head   int      // of a read or a state
}

type state struct {
	tail  int
	chain uint64
}

func (s state) with(bodies []string) state {
	for _, body := range bodies {
		hash := fnv.New64a()
		fmt.Fprintf(hash, "%d %s", s.chain, body)
		s = state{s.tail + 1, hash.Sum64()}
	}
	return s
}

var model = porcupine.Model{
	Init: func() interface{} { return state{} },
	Step: func(before, input, output interface{}) (bool, interface{}) {
		s, asked := before.(state), input.(operation)
		switch asked.Kind {
		case "append":
			return asked.Return < 0 || asked.First == s.tail+1, s.with(asked.Bodies)
		case "read":
			return asked.Head == s.tail && state{}.with(asked.Bodies) == s, s
		default:
			return asked.Head == s.tail, s
		}
	},
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var told []operation
		if err := json.Unmarshal(lines.Bytes(), &told); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		var history []porcupine.Operation
		for _, each := range told {
			end := each.Return
			if end < 0 {
				end = math.MaxInt64
			}
			history = append(history, porcupine.Operation{
				ClientId: each.Client, Input: each, Call: each.Call, Output: nil, Return: end,
			})
		}
		fmt.Println(porcupine.CheckOperations(model, history))
	}
}
