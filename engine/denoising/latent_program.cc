#include "engine/denoising/latent_program.h"

#include <algorithm>

#include "kernels/copy.h"
#include "kernels/transfer.h"

namespace weft {

LatentProgram::LatentProgram(const Rank& rank, DType wire, Graphs graphs)
    : StagedProgram(rank.stream, rank.arena, rank.placement, rank.experts.traits(), wire),
      experts_(rank.experts),
      forwards_(rank, graphs) {}

void LatentProgram::begin(const std::array<int64_t, 4>& shape, std::span<const double> guidance,
                          ForwardJob job) {
  shape_ = shape;
  job.grid = grid_ = traits_.grid(shape_[1], shape_[2], shape_[3]);
  guidance_.assign(guidance.begin(), guidance.end());
  slots.clear();
  solver_.clear();
  cache_.reset();
  forwards_.begin(std::move(job));
}

void LatentProgram::compute(const Step& step) {
  if (begin_pass(step)) run_forward(step, step.reuses);
}

void LatentProgram::run_forward(const Step& step, bool reuses) {
  const std::optional<BlockCache::Rows> added = added_rows(step);
  const auto blocks = [&](const Forward& forward) {
    const auto before = [&](const TensorView& x) { write_before(step, forward, x); };
    if (reuses)
      return cache_->reuse(*added, step.blocks.total, before, velocity_rows(step), forward);
    if (added) cache_->watch(*added, before);
    run_blocks(step, forward);
  };
  const bool watches = added && !reuses;
  forwards_.run(step, holds_latent() ? slots[kLatentSlot] : TensorView(), blocks,
                {.hook = watches ? &*cache_ : nullptr, .repeats = !reuses});
}

void LatentProgram::update(const Step& step) {
  const Arena::Scope scope(arena_);
  const TensorView latent = updated_rows(step);
  if (!latent) return;
  const TensorView velocity = velocity_of(step);
  // Parts are counted from 1 where one of them is updated alone.
  const int segment = step.pass.clip, part = step.pass.micro;
  std::vector<SolverPart>& all = solver(segment, latent);
  const std::span parts = part > 0 ? std::span(all).subspan(part - 1, 1) : std::span(all);
  const Range rows{parts.front().rows.begin, parts.back().rows.end};
  moves(step, rows, latent, velocity);
  for (auto& [own, state] : parts)
    sampler().step(stream_, arena_, step.pass.step,
                   velocity.slice(0, own.begin - rows.begin, own.size()),
                   latent.slice(0, own.begin - rows.begin, own.size()), state);
  moved(rows, latent);
  forwards_.check_latent(step.pass, latent);
  const bool ends = part == 0 || part == std::ssize(all);
  if (ends && step.pass.step + 1 == sampler().steps()) solver_.erase(segment);
}

std::vector<LatentProgram::SolverPart>& LatentProgram::solver(int segment,
                                                              const TensorView& rows) {
  std::vector<SolverPart>& parts = solver_[segment];
  if (parts.empty())
    for (const Range& part : solver_parts(rows))
      parts.push_back({part, SamplerState(part.size() * traits_.row(), stream_.device())});
  return parts;
}

// The k-th tensor of a segment's solver, in the arena where it has several parts.
TensorView LatentProgram::history_rows(int segment, size_t k) {
  std::vector<SolverPart>& parts = solver_.at(segment);
  const auto of = [&](const SolverPart& part) {
    return sampler().history(part.state)[k].second.reshape({part.rows.size(), traits_.row()});
  };
  if (parts.size() == 1) return of(parts[0]);
  const TensorView rows = arena_.alloc(DType::kF32, {parts.back().rows.end, traits_.row()});
  for (const SolverPart& part : parts)
    copy(stream_, of(part), rows.slice(0, part.rows.begin, part.rows.size()));
  return rows;
}

void LatentProgram::restore_history(int segment, size_t k, const TensorView& latent) {
  const Arena::Scope scope(arena_);
  const std::vector<SolverPart>& parts = solver_.at(segment);
  const TensorView rows = arena_.alloc(DType::kF32, {parts.back().rows.end, traits_.row()});
  cut_segment(segment, latent, rows);
  for (const SolverPart& part : parts)
    copy(stream_, rows.slice(0, part.rows.begin, part.rows.size()),
         sampler().history(part.state)[k].second.reshape({part.rows.size(), traits_.row()}));
}

Snapshot LatentProgram::gather(int turn, const Range& segments, const Range& stepped) {
  Tag tag{.kind = Payload::kLatent, .pass = {.step = turn}, .topic = Topic::kKept};
  Snapshot out;
  out.latent =
      gather_segments(segments, tag, [&](int segment) { return slots[segment_slot(segment)]; });
  const auto names = sampler().history(SamplerState(0));
  for (size_t k = 0; k < names.size() && stepped.size() > 0; ++k) {
    ++tag.hop;
    const auto rows = [&](int segment) { return history_rows(segment, k); };
    out.history.emplace_back(names[k].first, gather_segments(stepped, tag, rows));
  }
  return out;
}

Tensor LatentProgram::gather_segments(const Range& segments, const Tag& tag,
                                      const SegmentRows& rows) {
  int64_t frames = 0;
  for (auto segment = static_cast<int>(segments.begin); segment < segments.end; ++segment)
    frames += segment_frames(segment);
  Tensor whole;
  if (placement_.root()) whole = Tensor(DType::kF32, {shape_[0], frames, shape_[2], shape_[3]});
  Stream host = host_stream(stream_);
  int64_t first = 0;
  for (auto segment = static_cast<int>(segments.begin); segment < segments.end; ++segment) {
    const Arena::Scope scope(arena_);
    const int64_t count = segment_frames(segment);
    const auto sent = [&](int rank) { return reported(segment, rank); };
    const bool sends = sent(placement_.rank()).size() > 0;
    const Tensor latent = join_on_root(tag, sends ? rows(segment) : TensorView(),
                                       {shape_[0], count, shape_[2], shape_[3]}, sent);
    if (!placement_.root()) continue;
    copy(host, HostCopy(stream_, latent), whole.view().slice(1, first, count));
    first += count;
  }
  return whole;
}

}  // namespace weft
