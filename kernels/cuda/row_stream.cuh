// Long rows of logits streamed through shared memory, on devices of compute capability 9.0 and newer: a row is read
// once, kept on chip until its statistics are known, and then turned into its gradient, while the copy engine fetches
// the rows that follow. A row that is too long for one block's memory is cut into slices, one for each block of a
// cluster, which exchange their statistics through distributed shared memory. Internal to the CUDA backend.
//
// Blocks are persistent. In each, one warp starts the copies, one reads what stands beside the rows (targets, weights),
// one writes down what the rows came to, and the others consume. Which thread adds which columns, and in which order,
// depends on the row's length and the device's shared memory alone: the same bits in every run, whatever the number of
// blocks.
#pragma once

#include <greyhound/kernels/cuda/row_stream_memory.cuh>

namespace greyhound::cuda {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// One block's view of the stream. A task says what to do with the rows:
//   T, extras, squashed, squash()    as for row_statistics
//   reads(row)                       whether the row is read at all
//   header(row)                      its header
//   record(row, header, statistics, lane)   writes down the row's results, by one warp; the statistics of a row that
//                                    is not read are none()
// and where may_write and writes() say that there is a second pass:
//   result(header, statistics) -> what gradients are made from; is_plain(result): a faster form will do
//   out(row), columns(), gradient<plain>(result, values), gradient_at_target(result)
//   write_zeros(row, thread, threads)     instead, for a row that is not read
//   write_padding(row, thread, threads)   beside, for a row that is
template <class Task>
class RowStream {
 public:
  using T = typename Task::T;
  static constexpr int size = packed_size<T>;
  using Shared = StreamShared<Task::extras>;

  static_assert(sizeof(Shared) <= stream_ring_offset, "the ring follows");

  __device__ RowStream(const Task& task, const StreamedRows& rows, const StreamShape& shape, unsigned char* memory)
      : task_(task),
        rows_(rows),
        shape_(shape),
        shared_(*reinterpret_cast<Shared*>(memory)),
        ring_(reinterpret_cast<uint4*>(memory + stream_ring_offset)),
        rank_(hopper::rank_in_cluster()),
        blocks_(hopper::blocks_in_cluster()),
        first_row_(blockIdx.x / blocks_),
        row_step_(gridDim.x / blocks_) {
    const int packs = (rows.vocab + size - 1) / size;
    first_pack_ = min(static_cast<int>(rank_) * shape.slice_packs, packs);
    end_pack_ = min(first_pack_ + shape.slice_packs, packs);
    chunks_ = (end_pack_ - first_pack_ + stream_chunk_packs - 1) / stream_chunk_packs;
  }

  // Whether this block's recording warp has work: without a second pass every row is one block's.
  __device__ bool records() const { return rank_ == 0; }

  __device__ void initialize() {
    if (threadIdx.x == 0) {
      for (unsigned slot = 0; slot < shape_.slots; ++slot) {
        hopper::initialize(shared_.full[slot], 1);
        hopper::initialize(shared_.empty[slot], stream_warps);
      }
      for (int slot = 0; slot < stream_headers; ++slot) {
        hopper::initialize(shared_.header_full[slot], 1);
        hopper::initialize(shared_.header_empty[slot], stream_warps + (records() ? 1 : 0));
        hopper::initialize(shared_.posted[slot], task_.writes() ? 1 : stream_warps);
      }
      for (hopper::Barrier& barrier : shared_.exchanged) hopper::initialize(barrier, blocks_ > 1 ? 1 : stream_warps);
      hopper::publish_barriers();
    }
    hopper::cluster_barrier();
  }

  // By one thread: copies the chunks of this block's slices into the ring as it empties. What is copied are granules of
  // 16 bytes, from the row's address rounded down. With a shift, the last pack of a chunk ends in one granule more.
  __device__ void copy_chunks() {
    Cursor cursor;
    bool reads = first_row_ < rows_.rows && task_.reads(first_row_);
    for (std::int64_t row = first_row_; row < rows_.rows; row += row_step_) {
      // Asked a row ahead, so that the copies do not wait for the answer.
      const bool reads_next = row + row_step_ < rows_.rows && task_.reads(row + row_step_);
      if (reads) {
        const T* logits = row_logits(row);
        const int shift = static_cast<int>(shift_of(logits));
        const int whole = (rows_.vocab * static_cast<int>(sizeof(T)) + shift) / 16;  // granules that end in the row
        for (int chunk = 0; chunk < chunks_; ++chunk) {
          const int first = first_pack_ + chunk * stream_chunk_packs;
          const int end = min(first + stream_chunk_packs, end_pack_) + (shift != 0 ? 1 : 0);
          copy_granules(cursor, logits, shift, first, min(end, whole), end);
          cursor.advance(shape_.slots);
        }
      }
      reads = reads_next;
    }
  }

  // By one thread: the headers of the rows, a few of them ahead.
  __device__ void read_headers() {
    Cursor cursor;
    for (std::int64_t row = first_row_; row < rows_.rows; row += row_step_) {
      const RowHeader header = task_.header(row);
      hopper::wait(shared_.header_empty[cursor.slot], cursor.parity ^ 1);
      shared_.headers[cursor.slot] = header;
      hopper::arrive(shared_.header_full[cursor.slot]);
      cursor.advance(stream_headers);
    }
  }

  // By one warp: the results of the rows.
  __device__ void record_rows() {
    Cursor cursor;
    unsigned posted_parity = 0;  // one bit for each header: rows that are not read post nothing
    const unsigned lane = threadIdx.x % lanes, count = task_.writes() ? 1 : stream_warps;
    for (std::int64_t row = first_row_; row < rows_.rows; row += row_step_) {
      hopper::wait(shared_.header_full[cursor.slot], cursor.parity);
      const RowHeader& header = shared_.headers[cursor.slot];
      RowStatistics all = RowStatistics::none();
      if (header.target >= 0) {
        hopper::wait(shared_.posted[cursor.slot], posted_parity >> cursor.slot & 1);
        posted_parity ^= 1u << cursor.slot;
        if (lane < count) all = shared_.posts[cursor.slot][lane].statistics();
        if (count > 1) all = reduce_warp<T, Task::extras>(all);
      }
      task_.record(row, header, all, static_cast<int>(lane));
      release(shared_.header_empty[cursor.slot]);
      cursor.advance(stream_headers);
    }
  }

  // By all other warps.
  __device__ void consume() {
    Cursor cursor, header_cursor, exchange;
    const int thread = static_cast<int>(rank_) * stream_threads + static_cast<int>(threadIdx.x);
    const int threads = static_cast<int>(blocks_) * stream_threads;
    for (std::int64_t row = first_row_; row < rows_.rows; row += row_step_) {
      hopper::wait(shared_.header_full[header_cursor.slot], header_cursor.parity);
      const RowHeader& header = shared_.headers[header_cursor.slot];
      if (header.target >= 0) {
        const Cursor first = cursor;
        const RowStatistics own = reduce_warp<T, Task::extras>(statistics(row, header, cursor));
        if constexpr (Task::may_write) {
          if (task_.writes()) {
            const RowStatistics all = exchange_statistics(own, exchange);
            if (records() && threadIdx.x < lanes) post(all, header_cursor.slot);
            write_row(row, header, all, first);
            task_.write_padding(row, thread, threads);
          } else {
            post(own, header_cursor.slot);
          }
        } else {
          post(own, header_cursor.slot);
        }
      } else if constexpr (Task::may_write) {
        if (task_.writes()) task_.write_zeros(row, thread, threads);
      }
      release(shared_.header_empty[header_cursor.slot]);
      header_cursor.advance(stream_headers);
    }
  }

 private:
  static constexpr int lanes = warp_size;

  __device__ const T* row_logits(std::int64_t row) const {
    return static_cast<const T*>(rows_.data) + row * rows_.stride;
  }
  // Bytes from the 16-byte boundary before a row.
  __device__ static unsigned shift_of(const T* row) {
    return static_cast<unsigned>(reinterpret_cast<unsigned long long>(row)) % 16;
  }
  // Pack `at` of a chunk, whose granules are where the row's shift puts them.
  template <bool shifted>
  __device__ static Packed<T> pack_at(const uint4* granules, int at, unsigned shift) {
    if constexpr (!shifted) return {granules[at]};
    return {middle_bytes(granules[at], granules[at + 1], shift)};
  }

  // Granules first .. whole of the row, and then its last elements one by one, with -inf behind them up to `end`: what
  // lies behind the row is not touched.
  __device__ void copy_granules(const Cursor& cursor, const T* logits, int shift, int first, int whole, int end) {
    hopper::Barrier& full = shared_.full[cursor.slot];
    uint4* to = ring_ + cursor.slot * stream_slot_granules;
    const unsigned bytes = 16 * static_cast<unsigned>(whole - first);
    hopper::wait(shared_.empty[cursor.slot], cursor.parity ^ 1);
    if (whole < end) {
      const int element = (16 * whole - shift) / static_cast<int>(sizeof(T));
      T* elements = reinterpret_cast<T*>(to + (whole - first));
#pragma unroll
      for (int i = 0; i < 2 * size; ++i) {
        if (i >= (end - whole) * size) break;
        elements[i] = element + i < rows_.vocab ? logits[element + i] : narrow<T>(-INFINITY);
      }
    }
    hopper::arrive_expecting(full, bytes);
    if (bytes == 0) return;
    const auto* from = reinterpret_cast<const unsigned char*>(logits) - shift + 16 * static_cast<std::int64_t>(first);
    hopper::copy_to_shared(to, from, bytes, full);
  }

  // A warp is done with something that other threads may overwrite.
  __device__ void release(hopper::Barrier& barrier) const {
    __syncwarp();
    if (threadIdx.x % lanes == 0) hopper::arrive(barrier);
  }

  // Calls with each chunk of this slice in the ring, and its first pack.
  template <class Function>
  __device__ void each_chunk(Cursor& cursor, bool frees, Function&& function) {
    for (int chunk = 0; chunk < chunks_; ++chunk) {
      hopper::wait(shared_.full[cursor.slot], cursor.parity);
      function(ring_ + cursor.slot * stream_slot_granules, first_pack_ + chunk * stream_chunk_packs);
      if (frees) release(shared_.empty[cursor.slot]);
      cursor.advance(shape_.slots);
    }
  }

  __device__ RowStatistics statistics(std::int64_t row, const RowHeader& header, Cursor& cursor) {
    RowStatistics s = RowStatistics::none();
    // A maximum from the start: fewer sums are moved to a larger one. It also makes every thread wait for the target's
    // logit, before any thread of the cluster can overwrite it.
    s.max = task_.squash().template apply<Task::squashed>(header.logit);
    const unsigned shift = shift_of(row_logits(row));
    each_chunk(cursor, !task_.writes(), [&](const uint4* granules, int first) {
      if (shift == 0) {
        add_chunk<false>(s, granules, first, 0, header.target);
      } else {
        add_chunk<true>(s, granules, first, shift, header.target);
      }
    });
    return s;
  }

  // Whether all lanes of this warp have all of their packs in a chunk of `count`.
  __device__ static bool has_all_packs(int count) {
    return (stream_packs_per_thread - 1) * stream_threads + static_cast<int>(threadIdx.x | (lanes - 1)) < count;
  }

  // Adds this thread's packs of a chunk, but for the target. Warps with all of their packs take them together.
  template <bool shifted>
  __device__ void add_chunk(RowStatistics& s, const uint4* granules, int first, unsigned shift, int target) {
    const int count = min(end_pack_ - first, stream_chunk_packs), thread = static_cast<int>(threadIdx.x);
    const int target_at = target / size - first;
    if (has_all_packs(count)) {
      Packed<T> loaded[stream_packs_per_thread];
#pragma unroll
      for (int g = 0; g < stream_packs_per_thread; ++g) {
        const int at = g * stream_threads + thread;
        loaded[g] = pack_at<shifted>(granules, at, shift);
        if (at == target_at) loaded[g] = without_element(loaded[g], target % size);
      }
      add(s, loaded, first + thread);
      return;
    }
    for (int at = thread; at < count; at += stream_threads) {
      Packed<T> loaded[1] = {pack_at<shifted>(granules, at, shift)};
      if (at == target_at) loaded[0] = without_element(loaded[0], target % size);
      add(s, loaded, first + at);
    }
  }

  // Adds packs pack, pack + stream_threads, ...
  template <int count>
  __device__ void add(RowStatistics& s, const Packed<T> (&packed)[count], int first_pack) {
    const Squash& squash = task_.squash();
    if constexpr (Task::extras) {
#pragma unroll
      for (int g = 0; g < count; ++g) {
        float u[size], z[size];
        unpack(packed[g], u);
#pragma unroll
        for (int i = 0; i < size; ++i) z[i] = squash.apply<Task::squashed>(u[i]);
        add_columns<T, true>(s, u, z, (first_pack + g * stream_threads) * size);
      }
    } else {
      // One maximum for all packs, on the raw logits: z grows with u.
      const float max = fmaxf(s.max, squash.apply<Task::squashed>(largest(packed)));
      const float base = max == -INFINITY ? 0.0f : max;  // exp(-inf - 0) is 0, exp(-inf + inf) would be NaN
      s.sum *= row_exp<T>(s.max - base);
      s.max = max;
#pragma unroll
      for (int g = 0; g < count; ++g) {
        float z[size];
        unpack(packed[g], z);
#pragma unroll
        for (int i = 0; i < size; ++i) z[i] = row_exp<T>(squash.apply<Task::squashed>(z[i]) - base);
#pragma unroll
        for (int width = size / 2; width > 0; width /= 2) {
#pragma unroll
          for (int i = 0; i < width; ++i) z[i] += z[i + width];
        }
        s.sum += z[0];
      }
    }
  }

  // Leaves a warp's statistics, or those of all, to the recording warp.
  __device__ void post(const RowStatistics& s, unsigned slot) {
    if (threadIdx.x % lanes != 0) return;
    shared_.posts[slot][threadIdx.x / lanes] = Exchanged<Task::extras>::of(s);
    hopper::arrive(shared_.posted[slot]);
  }

  // The statistics of all warps of the cluster, in a fixed order the same in all threads. Two tables alternate: a block
  // sends the row after next only when all warps have sent the next one, and so have read this one's.
  __device__ RowStatistics exchange_statistics(RowStatistics s, Cursor& cursor) {
    using Entry = Exchanged<Task::extras>;
    Entry* entries = shared_.entries[cursor.slot];
    hopper::Barrier& barrier = shared_.exchanged[cursor.slot];
    const unsigned lane = threadIdx.x % lanes, warp = threadIdx.x / lanes;
    const unsigned count = blocks_ * stream_warps;
    if (blocks_ == 1) {
      if (lane == 0) {
        entries[warp] = Entry::of(s);
        hopper::arrive(barrier);
      }
    } else if (threadIdx.x == 0) {
      hopper::arrive_expecting(barrier, count * sizeof(Entry));
    }
    if (blocks_ > 1 && lane < blocks_) {
      Entry::of(s).send(hopper::address_in(&entries[rank_ * stream_warps + warp], lane),
                        hopper::address_in(&barrier, lane));
    }
    hopper::wait_for_cluster(barrier, cursor.parity);
    RowStatistics all = lane < count ? entries[lane].statistics() : RowStatistics::none();
    for (unsigned i = lane + lanes; i < count; i += lanes) combine<T, Task::extras>(all, entries[i].statistics());
    cursor.advance(2);
    return reduce_warp<T, Task::extras>(all);
  }

  __device__ void write_row(std::int64_t row, const RowHeader& header, const RowStatistics& all, const Cursor& first) {
    const auto result = task_.result(header, all);
    if (task_.is_plain(result)) {
      write<true>(row, header, result, first);
    } else {
      write<false>(row, header, result, first);
    }
  }

  template <bool plain, class Result>
  __device__ void write(std::int64_t row, const RowHeader& header, const Result& result, Cursor cursor) {
    T* const out = task_.out(row);
    const unsigned shift = shift_of(row_logits(row)), out_shift = shift_of(out);
    const int target_pack = header.target / size, thread = static_cast<int>(threadIdx.x);
    const bool aligned = shift == 0 && out_shift == 0;
    const int whole_packs = rows_.vocab / size;
    each_chunk(cursor, true, [&](const uint4* granules, int first) {
      const int count = min(end_pack_ - first, stream_chunk_packs);
      const int whole = min(count, whole_packs - first);
      const auto write_whole = [&](int at) {
        float values[size];
        unpack(Packed<T>{granules[at]}, values);
        task_.template gradient<plain>(result, values);
        reinterpret_cast<uint4*>(out)[first + at] = pack<T>(values).bits;
      };
      if (aligned && has_all_packs(whole)) {
#pragma unroll
        for (int g = 0; g < stream_packs_per_thread; ++g) write_whole(g * stream_threads + thread);
      } else if (aligned) {
        for (int at = thread; at < whole; at += stream_threads) write_whole(at);
      }
      // The last pack of a row may be incomplete; rows with a shift go the slower way as a whole.
      for (int begin = aligned ? whole : 0; begin < count; begin += stream_threads) {
        const int at = begin + thread, column = (first + at) * size;
        float values[size] = {};
        if (at < count) {
          unpack(shift == 0 ? pack_at<false>(granules, at, 0) : pack_at<true>(granules, at, shift), values);
          task_.template gradient<plain>(result, values);
#pragma unroll
          for (int i = 0; i < size; ++i) {
            if (column + i == header.target) values[i] = task_.gradient_at_target(result);
            if (column + i >= rows_.vocab) values[i] = 0;
          }
        }
        store_warp(out, out_shift, column, task_.columns(), values, at < count);
      }
    });
    // From the thread that has just written what stands around it.
    const int at = target_pack - first_pack_;
    const bool in_slice = at >= 0 && target_pack < min(end_pack_, whole_packs);
    if (aligned && in_slice && at % stream_threads == thread) {
      out[header.target] = narrow<T>(task_.gradient_at_target(result));
    }
  }

  const Task& task_;
  const StreamedRows rows_;
  const StreamShape shape_;
  Shared& shared_;
  uint4* const ring_;
  const unsigned rank_, blocks_;
  const std::int64_t first_row_, row_step_;
  int first_pack_, end_pack_, chunks_;
};

#endif

}  // namespace greyhound::cuda
