#include <greyhound/core/comm/gpu_identity.h>
#include <greyhound/core/comm/launch.h>
#include <greyhound/core/comm/peers.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace greyhound {

namespace {

// Everybody's `own`, in the order of the ranks.
template <class Plain>
std::vector<Plain> gather(Communicator& host, const Plain& own) {
  static_assert(std::is_trivially_copyable_v<Plain>);
  std::vector<Plain> all(static_cast<std::size_t>(host.size()));
  const auto bytes = static_cast<std::int64_t>(sizeof own);
  host.all_gather(Context::cpu(), tensor(static_cast<const void*>(&own), DType::uint8, {bytes}),
                  tensor(static_cast<void*>(all.data()), DType::uint8, {bytes * host.size()}));
  return all;
}

LocalRank local_rank(const std::vector<std::uint64_t>& hosts, int rank) {
  const auto own = hosts.begin() + rank;
  return {static_cast<int>(std::count(hosts.begin(), own, *own)),
          static_cast<int>(std::count(hosts.begin(), hosts.end(), *own))};
}

// Text of a fixed size, for gather.
template <std::size_t size>
void put(char (&to)[size], const std::string& text) {
  std::strncpy(to, text.c_str(), size - 1);
}

}  // namespace

LocalRank local_rank(Communicator& host) { return local_rank(gather(host, this_host()), host.rank()); }

int choose_gpu(Communicator& host) {
  if (host.size() == 1) return 0;
  struct Sent {
    std::uint64_t host;
    std::int64_t devices;
    char host_name[64], gpu[64], visible[256];
  };
  const int devices = cuda_device_count();
  // A launcher may show each rank its own GPU alone, as number 0.
  const int index = devices == 0 ? 0 : local_rank(host).rank % devices;
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  Sent own{};
  own.host = this_host();
  own.devices = devices;
  put(own.host_name, this_process().host);
  if (devices > 0) put(own.gpu, gpu_identity(index));
  put(own.visible, visible == nullptr ? "not set" : visible);

  std::vector<GpuClaim> claims;
  for (const Sent& sent : gather(host, own)) {
    claims.push_back({sent.host, sent.host_name, sent.devices, sent.gpu, sent.visible});
  }
  if (std::all_of(claims.begin(), claims.end(), [](const GpuClaim& claim) { return claim.devices == 0; })) return -1;
  require_gpus(claims);
  return index;
}

void require_gpus(const std::vector<GpuClaim>& claims) {
  std::vector<std::uint64_t> hosts;
  for (const GpuClaim& claim : claims) hosts.push_back(claim.host);
  for (std::size_t rank = 0; rank < claims.size(); ++rank) {
    const GpuClaim& claim = claims[rank];
    const LocalRank local = local_rank(hosts, static_cast<int>(rank));
    const std::string who =
        concat("rank ", rank, " (local rank ", local.rank, " of ", local.size, " on ", claim.host_name, ") sees ",
               claim.devices, " GPU", claim.devices == 1 ? "" : "s", " (CUDA_VISIBLE_DEVICES ",
               claim.visible == "not set" ? "" : "= ", claim.visible, ")");
    require(claim.devices > 0, who, "; expected one for each rank");
    for (std::size_t other = 0; other < rank; ++other) {
      if (claims[other].host != claim.host || claims[other].gpu != claim.gpu) continue;
      throw_usage("more ranks than GPUs: ", who, " and would share ", claim.gpu, " with local rank ",
                  local_rank(hosts, static_cast<int>(other)).rank,
                  "; expected at most one rank for each GPU of a host");
    }
  }
}

}  // namespace greyhound
