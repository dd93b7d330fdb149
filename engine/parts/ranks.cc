#include "engine/parts/ranks.h"

#include <array>

#include "parallel/transport/local.h"

namespace weft {

void on_ranks(const Ranks& ranks, const std::function<void(Communicator&)>& work,
              const Link* link) {
  const auto linked = [&](const std::shared_ptr<Transport>& transport) {
    return link ? make_link(transport, *link) : transport;
  };
  if (!ranks.processes) {
    std::vector<std::shared_ptr<Transport>> transports = make_local_transports(ranks.count);
    for (std::shared_ptr<Transport>& transport : transports) transport = linked(transport);
    run_ranks(transports, work);
    return;
  }
  Communicator world(linked(ranks.transport));
  try {
    work(world);
  } catch (const std::exception& error) {
    const auto* known = dynamic_cast<const Error*>(&error);
    if (known && known->kind() == ErrorKind::kStopped) throw;  // all ranks stop, by agreement
    world.abort("rank " + std::to_string(world.rank()) + " failed: " + error.what());
    throw;
  }
}

uint64_t broadcast_from_root(const Ranks& ranks, uint64_t value) {
  if (!ranks.processes) return value;
  on_ranks(ranks, [&](Communicator& world) {
    Stream stream = Stream::cpu(1);
    world.broadcast(stream, {}, TensorView(&value, DType::kI64, {1}), 0);
  });
  return value;
}

std::vector<std::string> agreed_texts(const Ranks& ranks,
                                      const std::function<std::vector<std::string>()>& make) {
  if (!ranks.processes) return make();
  std::vector<std::string> texts;
  int64_t failed = -1;  // an ErrorKind; its message is then the only text
  on_ranks(ranks, [&](Communicator& world) {
    Stream stream = Stream::cpu(1);
    if (world.rank() == 0) {
      try {
        texts = make();
      } catch (const Error& error) {
        failed = static_cast<int64_t>(error.kind());
        texts = {error.what()};
      }
    }
    std::array<int64_t, 2> about{failed, static_cast<int64_t>(texts.size())};
    world.broadcast(stream, {}, TensorView(about.data(), DType::kI64, {2}), 0);
    failed = about[0];
    texts.resize(about[1]);
    for (std::string& text : texts) {
      int64_t size = static_cast<int64_t>(text.size());
      world.broadcast(stream, {}, TensorView(&size, DType::kI64, {1}), 0);
      text.resize(size);
      if (size > 0) world.broadcast(stream, {}, TensorView(text.data(), DType::kU8, {size}), 0);
    }
  });
  if (failed >= 0) throw AgreedError(static_cast<ErrorKind>(failed), texts.front());
  return texts;
}

std::vector<std::string> gathered_texts(const Ranks& ranks, const std::string& own) {
  if (!ranks.processes) return {own};
  std::vector<std::string> texts(ranks.count);
  on_ranks(ranks, [&](Communicator& world) {
    Stream stream = Stream::cpu(1);
    std::vector<int64_t> sizes(ranks.count);
    std::vector<TensorView> views;
    sizes[world.rank()] = static_cast<int64_t>(own.size());
    for (int64_t& size : sizes) views.push_back({&size, DType::kI64, {1}});
    world.all_gather_v(stream, {.topic = Topic::kCheck}, views[world.rank()], views);
    for (int rank = 0; rank < ranks.count; ++rank) {
      texts[rank] = rank == world.rank() ? own : std::string(sizes[rank], '\0');
      views[rank] = {texts[rank].data(), DType::kU8, {sizes[rank]}};
    }
    world.all_gather_v(stream, {.topic = Topic::kCheck, .hop = 1}, views[world.rank()], views);
  });
  return texts;
}

}  // namespace weft
