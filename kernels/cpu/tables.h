#pragma once
// These functions fill the CPU op tables (called by ops.cc only). Each overwrites the entries of
// its family; ops.cc calls the reference first and skips what WEFT_CPU caps.
namespace weft {
struct Ops;
}

namespace weft::cpu {

// The reference, one file per family: cpu/<family>.cc. Together these fill every entry.
void fill_norm_reference(Ops& ops);
void fill_linear_reference(Ops& ops);
void fill_attention_reference(Ops& ops);
void fill_rope_reference(Ops& ops);
void fill_pointwise_reference(Ops& ops);
void fill_conv_reference(Ops& ops);
void fill_copy_reference(Ops& ops);
void fill_row_code_reference(Ops& ops);

// Highway, cpu/<family>_simd.cc: for any x86-64 or NEON machine, dispatched at run time.
void fill_norm_simd(Ops& ops);
void fill_rope_simd(Ops& ops);
void fill_pointwise_simd(Ops& ops);
void fill_copy_simd(Ops& ops);
void fill_attention_simd(Ops& ops);
void fill_merge_simd(Ops& ops);  // the merge of attention states
void fill_linear_simd(Ops& ops);
void fill_conv_simd(Ops& ops);

// oneDNN, cpu/<family>_onednn.cc.
void fill_linear_onednn(Ops& ops);
void fill_attention_onednn(Ops& ops);
void fill_conv_onednn(Ops& ops);

// Each of these fills all families of one kind; they are in ops.cc.
void fill_reference(Ops& ops);
void fill_simd(Ops& ops);
void fill_onednn(Ops& ops);

}  // namespace weft::cpu
