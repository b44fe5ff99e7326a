// One step: its tokens, and where their keys and values live. Filled anew by Python for every call of `headrace_run`.
#pragma once
#include <cstdint>

namespace headrace {

struct Step {
  int64_t num_tokens;
  int64_t num_seqs;
  int64_t num_rows;             // tokens whose logits are asked for
  const int64_t* input_ids;     // [num_tokens]
  const int64_t* positions;     // [num_tokens]
  const int64_t* slots;         // [num_tokens]: block id * block size + offset, where a token's K and V go
  const int64_t* rows;          // [num_rows], indices into the tokens
  const int32_t* starts;        // [num_seqs + 1]: sequence i's tokens are starts[i] up to starts[i + 1], in order
  const int32_t* context_lens;  // [num_seqs]: with this step's tokens, which are its last
  const int32_t* block_tables;  // [num_seqs, max_blocks]
  int64_t max_blocks;           // between the rows of block_tables
};

}  // namespace headrace
