#pragma once
// TokenProgram: the rounds of a language model on one rank (plan_tokens). A micro-batch is one pass
// through the pipeline stages; between stages its hidden rows travel in the compute dtype.
#include <span>
#include <vector>

#include "engine/language/language_rank.h"
#include "parallel/schedule/interpreter.h"

namespace weft {

class TokenProgram : public Program {
 public:
  struct Micro {
    std::vector<LanguageRank::Part> parts{};  // tokens of this round; empty: nothing is left to do
    LanguageRank::Split split = LanguageRank::Split::kHeads;
    LanguageRank::Share share{};
    Tensor hidden{};  // [share.rows, D] f32
    int round = -1;
  };

 protected:
  explicit TokenProgram(LanguageRank& rank) : rank_(rank) {}

  // Runs rounds of `micros` micro-batches, which have their parts of the first round.
  void run_rounds(int micros, int rounds);

  virtual Micro& micro(int index) = 0;
  virtual void next_parts(int /*micro*/) {}  // gives a micro-batch its parts of a later round
  // Chooses an id per part on the last stage; then every stage learns them.
  virtual void choose(const Pass& pass, std::span<int32_t> ids) = 0;
  virtual void learn(int micro, std::span<const int32_t> ids) = 0;
  virtual Observer* observer() { return nullptr; }

  LanguageRank& rank_;

 private:
  void prepare(const Step& message) override;
  void received(const Step& message) override;
  void compute(const Step& step) override;
  void update(const Step& step) override;
  Micro& begin_round(const Pass& pass);
  std::span<int32_t> ids(int micro);
};

}  // namespace weft
