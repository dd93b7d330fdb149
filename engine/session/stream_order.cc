#include "engine/session/stream_order.h"

#include <array>
#include <string>

namespace weft {
namespace {

constexpr Tag kStreamOrder{.kind = Payload::kControl, .topic = Topic::kJob};
constexpr Tag kStreamFailure{.kind = Payload::kControl, .topic = Topic::kJob, .hop = 1};

using OrderWords = std::array<int64_t, 10>;

void broadcast_words(Communicator& world, OrderWords& words) {
  Stream stream = Stream::cpu(1);
  world.broadcast(stream, kStreamOrder, {words.data(), DType::kI64, {std::ssize(words)}}, 0);
}

}  // namespace

void StreamOrder::tell(Communicator& world) const {
  OrderWords words{static_cast<int64_t>(kind),
                   engine,
                   layout[Axis::kStep],
                   layout[Axis::kLayers],
                   layout[Axis::kUlysses],
                   decodes_apart,
                   prompt_rows,
                   shows_anew,
                   code,
                   text};
  broadcast_words(world, words);
}

StreamOrder StreamOrder::heard(Communicator& world) {
  OrderWords words{};
  broadcast_words(world, words);
  StreamOrder order{.kind = static_cast<Kind>(words[0]),
                    .engine = words[1],
                    .decodes_apart = words[5] != 0,
                    .prompt_rows = words[6],
                    .shows_anew = words[7] != 0,
                    .code = words[8],
                    .text = words[9]};
  order.layout[Axis::kStep] = static_cast<int>(words[2]);
  order.layout[Axis::kLayers] = static_cast<int>(words[3]);
  order.layout[Axis::kUlysses] = static_cast<int>(words[4]);
  return order;
}

void dismiss_streams(Communicator& world, const Error* failed) {
  StreamOrder order{.kind = StreamOrder::Kind::kEnd};
  if (!failed) return order.tell(world);
  std::string text = failed->what();
  order.kind = StreamOrder::Kind::kFailed;
  order.code = static_cast<int64_t>(failed->kind());
  order.text = std::ssize(text);
  order.tell(world);
  Stream stream = Stream::cpu(1);
  world.broadcast(stream, kStreamFailure, {text.data(), DType::kU8, {order.text}}, 0);
}

Error failure_heard(Communicator& world, const StreamOrder& order) {
  std::string text(order.text, '\0');
  Stream stream = Stream::cpu(1);
  world.broadcast(stream, kStreamFailure, {text.data(), DType::kU8, {order.text}}, 0);
  return {static_cast<ErrorKind>(order.code), text};
}

}  // namespace weft
