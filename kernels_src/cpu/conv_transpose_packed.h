// Vectorised, multi-threaded fp32 transposed convolution. One work item is a block of output rows of one sample, one
// group, one vertical phase: pack the input rows, run the tiles over line and channels, then the epilogue.
#pragma once

#include <omp.h>

#include "conv_outputs.h"
#include "conv_transpose_pack.h"
#include "conv_transpose_plain.h"
#ifdef TCONV_WALKS_DEPTH
#include "edge_rows.h"
#endif
#include "rows.h"
#include "workspace.h"

namespace tconv {
namespace cpu {

class PackedConvTranspose {
 public:
  PackedConvTranspose(const ConvCall& call, int64_t samples_at_once, void* workspace)
      : call_(call),
        p_(call.layer),
        isa_(pick_isa(call.kernel_choice)),
        plan_(call.layer, isa_, samples_at_once, call.num_threads),
        args_(make_epilogue_args<float>(call)) {
    Workspace space(workspace);
    weights_ = space.take<float>(plan_.weights_floats);
    scratch_floats_ = padded_plane(plan_.x_floats + plan_.sums_floats);
    scratch_ = space.take<float>(scratch_floats_ * call.num_threads);
    workspace_bytes_ = space.used();
  }

  int64_t workspace_bytes() const { return workspace_bytes_; }
  int64_t num_partials() const { return plan_.first_block.back(); }
  bool has_finite_weights() const { return finite_weights_; }  // once packed

  void pack() {
    const float* weight = static_cast<const float*>(call_.weight);
#ifdef TCONV_WALKS_DEPTH
    finite_weights_ =
        all_finite(weight, call_.depth.walks() ? weight_count(call_)
                                               : p_.in_channels * plan_.group_out * p_.kernel_h * p_.kernel_w);
    for (const PhasePlan& phase : plan_.phases)
      if (phase.tap_count() > 0) pack_weights(call_, plan_, phase, weight, call_.num_threads, weights_);
#else
    finite_weights_ = all_finite(weight, p_.in_channels * plan_.group_out * p_.kernel_h * p_.kernel_w);
    for (const PhasePlan& phase : plan_.phases)
      if (phase.tap_count() > 0) pack_weights(p_, plan_, phase, weight, call_.num_threads, weights_);
#endif
  }

  void run(const ConvOutputs<float>& outputs) const {
    const int64_t blocks = num_partials();
    const int64_t items = outputs.num_samples * blocks * p_.groups * plan_.items_per_block;
#pragma omp parallel for schedule(dynamic) num_threads(int(call_.num_threads))
    for (int64_t i = 0; i < items; ++i) {
      Item item;
      int64_t rest = i;
      item.first_tile = rest % plan_.items_per_block * plan_.tiles_per_item;
      item.last_tile = std::min<int64_t>(item.first_tile + plan_.tiles_per_item, plan_.tiles.size());
      rest /= plan_.items_per_block;
      item.group = rest % p_.groups;
      rest /= p_.groups;
      item.block = rest % blocks;
      item.sample = rest / blocks;
      run_item(outputs, item, scratch_ + omp_get_thread_num() * scratch_floats_);
    }
  }

 private:
  struct Item {
    int64_t sample, block, group, first_tile, last_tile;
  };

  void run_item(const ConvOutputs<float>& outputs, const Item& item, float* scratch) const {
    int64_t residue_h = 0;
    while (plan_.first_block[residue_h + 1] <= item.block) ++residue_h;
    const int64_t first_row = (item.block - plan_.first_block[residue_h]) * plan_.rows;
    if (outputs.partials != nullptr) {
      for (int64_t t = item.first_tile; t < item.last_tile; ++t)
        for (int c = 0; c < plan_.tiles[t].count; ++c) *partial(outputs, item, plan_.tiles[t].first + c) = MomentsF64();
    }
    const AxisPhase& h = plan_.phases[residue_h * plan_.phases_w].h;
    const int64_t rows = std::min(plan_.rows, h.out_count - first_row);
    if (!finite_weights_) return run_item_plain(outputs, item, h, first_row, rows);
    for (int64_t w = 0; w < plan_.phases_w; ++w) {
      const PhasePlan& phase = plan_.phases[residue_h * plan_.phases_w + w];
      run_phase(outputs, item, phase, first_row, rows, scratch, scratch + plan_.x_floats);
    }
  }

  void run_phase(const ConvOutputs<float>& outputs, const Item& item, const PhasePlan& phase, int64_t first_row,
                 int64_t rows, float* planes, float* sums) const {
    const TileSet tiles = tiles_for(isa_);
    const int64_t first_channel = plan_.tiles[item.first_tile].first;
    const float* x = static_cast<const float*>(call_.x) + (outputs.first_sample + item.sample) * p_.x_stride_n +
                     item.group * plan_.group_in * p_.x_stride_c;
#ifdef TCONV_WALKS_DEPTH
    const ChannelsRead read(call_, item.sample, plan_.group_in);
    // Once at least: where nothing is read, outputs are bias alone.
    for (int64_t first_ci = read.first; first_ci == read.first || first_ci < read.last;
         first_ci += phase.channel_block) {
      const int64_t channels = std::min(phase.channel_block, read.last - first_ci);
#else
    for (int64_t first_ci = 0; first_ci < plan_.group_in; first_ci += phase.channel_block) {
      const int64_t channels = std::min(phase.channel_block, plan_.group_in - first_ci);
#endif
      if (phase.tap_count() > 0)
        for (int64_t c = 0; c < channels; ++c)
#ifdef TCONV_WALKS_DEPTH
        {
          const float* channel = x + (first_ci + c) * p_.x_stride_c;
          if (call_.depth.walks())
            channel = input_plane(call_, item.sample, WalkChannel(call_, item.group, first_ci + c));
          pack_plane(p_, phase, channel, first_row, planes + c * phase.plane);
        }
#else
          pack_plane(p_, phase, x + (first_ci + c) * p_.x_stride_c, first_row, planes + c * phase.plane);
#endif
      for (int64_t t = item.first_tile; t < item.last_tile; ++t) {
        const ChannelTile& tile = plan_.tiles[t];
        float* tile_sums = sums + (tile.first - first_channel) * plan_.sums_stride;
        TileArgs args;
        args.x = planes;
        args.x_plane = phase.plane;
        args.in_channels = channels;
        args.tap_offsets = phase.tap_offsets.data();
        args.tap_count = phase.tap_count();
        args.weights =
            weights_ + phase.weights +
            ((item.group * plan_.group_out + tile.first) * plan_.group_in + first_ci * tile.count) * phase.tap_count();
        args.sums = tile_sums;
        args.sums_stride = plan_.sums_stride;
#ifdef TCONV_WALKS_DEPTH
        args.accumulate = first_ci > read.first;
        run_line(p_, phase, first_row, rows, tiles.function(tile.count), tile.count, tiles.pixels(tile.count), args);
        if (first_ci + channels == read.last) finish_tile(outputs, item, phase, tile, first_row, rows, tile_sums);
#else
        args.accumulate = first_ci > 0;
        tiles.function(tile.count)(args, ceil_div(phase.line(rows), tiles.pixels(tile.count)));
        if (first_ci + channels == plan_.group_in) finish_tile(outputs, item, phase, tile, first_row, rows, tile_sums);
#endif
      }
    }
  }

  // Epilogue, moments and stores of one tile's channels.
  void finish_tile(const ConvOutputs<float>& outputs, const Item& item, const PhasePlan& phase, const ChannelTile& tile,
                   int64_t first_row, int64_t rows, float* sums) const {
    const bool contiguous = phase.w.out_step == 1 && phase.h.out_step == 1;
    for (int c = 0; c < tile.count; ++c, sums += plan_.sums_stride) {
      const int64_t channel = item.group * plan_.group_out + tile.first + c;
      const ChannelEpilogue<float> epilogue(args_, channel);
      float* plane = outputs.out + (item.sample * p_.out_channels + channel) * p_.out_h * p_.out_w;
#ifdef TCONV_WALKS_DEPTH
      if (call_.depth.walks()) plane = output_plane(call_, outputs.out, item.sample, channel);
#endif
      for (int64_t r = 0; r < rows; ++r) {
        float* out = plane + (phase.h.out_first + (first_row + r) * phase.h.out_step) * p_.out_w + phase.w.out_first;
        float* row = sums + r * phase.pitch;
        if (phase.w.out_step == 1) {
          epilogue_row(isa_, row, out, phase.w.out_count, epilogue);
          row = out;
        } else {
          epilogue_row(isa_, row, row, phase.w.out_count, epilogue);
          for (int64_t i = 0; i < phase.w.out_count; ++i) out[i * phase.w.out_step] = row[i];
        }
#ifdef TCONV_READS_TENSORS
        join_row(isa_, out, out - outputs.out, phase.w.out_step, phase.w.out_count, epilogue);
#endif
        if (outputs.partials != nullptr && !contiguous)
          add_moments(isa_, row, phase.w.out_count, *partial(outputs, item, tile.first + c));
      }
      if (outputs.partials != nullptr && contiguous)
        add_moments(isa_, plane + first_row * p_.out_w, rows * p_.out_w, *partial(outputs, item, tile.first + c));
    }
  }

  // The tiles multiply absent taps' weights by zero, which is only right for finite weights.
  void run_item_plain(const ConvOutputs<float>& outputs, const Item& item, const AxisPhase& h, int64_t first_row,
                      int64_t rows) const {
    const float* x = static_cast<const float*>(call_.x) + (outputs.first_sample + item.sample) * p_.x_stride_n;
    for (int64_t t = item.first_tile; t < item.last_tile; ++t) {
      for (int64_t co = plan_.tiles[t].first; co < plan_.tiles[t].first + plan_.tiles[t].count; ++co) {
        const int64_t channel = item.group * plan_.group_out + co;
        const ChannelEpilogue<float> epilogue(args_, channel);
        for (int64_t r = first_row; r < first_row + rows; ++r) {
          const int64_t oh = h.out_first + r * h.out_step;
          float* row = outputs.out + ((item.sample * p_.out_channels + channel) * p_.out_h + oh) * p_.out_w;
#ifdef TCONV_WALKS_DEPTH
          if (call_.depth.walks()) {
            row = output_plane(call_, outputs.out, item.sample, channel) + oh * p_.out_w;
            plain_row_of_walk(call_, item.sample, channel, oh, row);
          } else {
            plain_row(p_, x, static_cast<const float*>(call_.weight), channel, oh, row);
          }
#else
          plain_row(p_, x, static_cast<const float*>(call_.weight), channel, oh, row);
#endif
          epilogue_row(isa_, row, row, p_.out_w, epilogue);
#ifdef TCONV_READS_TENSORS
          join_row(isa_, row, row - outputs.out, 1, p_.out_w, epilogue);
#endif
          if (outputs.partials != nullptr) add_moments(isa_, row, p_.out_w, *partial(outputs, item, co));
        }
      }
    }
  }

  MomentsF64* partial(const ConvOutputs<float>& outputs, const Item& item, int64_t channel_of_group) const {
    return outputs.partials + (item.sample * num_partials() + item.block) * p_.out_channels +
           item.group * plan_.group_out + channel_of_group;
  }

  const ConvCall& call_;
  const ConvTransposeLayer& p_;
  Isa isa_;
  PackedPlan plan_;
  EpilogueArgs<float> args_;
  float* weights_;
  float* scratch_;
  int64_t scratch_floats_, workspace_bytes_;
  bool finite_weights_ = true;
};

}  // namespace cpu
}  // namespace tconv
