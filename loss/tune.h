// Times the algorithms of a plan's matrix products once, at start-up.
#pragma once

#include <greyhound/loss/plan.h>

namespace greyhound::loss {

// Chooses the fastest of the library's algorithms, of those that give the bits of its first, for every product that
// calls with this plan make: logits, and grad_input and grad_weight where the plan has them, for a full chunk and for
// the shorter last one of `tokens` rows. `with_bias`: the calls will pass a bias. The choices are the context's; save
// and load them with kernels/matmul_choices.h. Calls without tune, of another number of tokens, or whose matrices are
// not contiguous (or start at less than 16 bytes' alignment) take the first algorithm that the library's heuristic
// offers.
//
// Allocates, and frees again: the plan's workspace, a weight and a grad_weight of [V, D] (the latter only where the
// workspace holds no accumulator), two matrices of [chunk_rows, D], and a bias. Fills them with random values. Waits
// for the stream; takes up to about two seconds for a large product. Does nothing on the CPU.
GREYHOUND_API void tune(const Context& context, const Plan& plan, bool with_bias = false);

}  // namespace greyhound::loss
