// How much of the forward backward makes again, to save memory.
#pragma once

namespace greyhound {

// What of the forward backward makes again instead of finding it kept; each mode includes the ones before it. All give
// the same bits: the same operations run again on the same inputs. Costs in [B * T, n_embd] of memory and in time, each
// for a block: `none` keeps 16; `gelu` 12, for one GELU; `gelu_norm` 10, for two layer norms besides; `block` keeps the
// block's input alone, 1, for another forward of the block (a third more work in products and attention).
enum class Recompute { none, gelu, gelu_norm, block };

}  // namespace greyhound
