/* What C makes of mcflow's algorithm and memory layout (mcflow/engine/kernel.py): flow control,
 * LIFO eviction with reset, single-token blocks, and every tally that the kernel keeps.
 *
 * Left out, and so in favour of C: other policies and victims, classes, blocks, recompute,
 * records, trajectories, verdicts.
 *
 * Nodes 0 .. first-1 are sentinels: 0 the active list, LINE the waiting line, and each of the
 * ring's slots a list of the requests that complete in it. Requests come after them. */

#include <stdint.h>
#include <stdlib.h>

typedef uint32_t u32;
typedef uint64_t u64;
typedef int64_t i64;

enum { LINE = 1, LINEAR = 15, FINE = 10, OCTAVES = 25, BINS = (1 << LINEAR) + (OCTAVES << FINE) };

/* In the order in which reference.py reads them. */
typedef struct {
    i64 overflows, evictions, completed, rejected, tokens, wasted, done_tokens;
    i64 usage_sum, waiting_sum, active_sum, latency_sum, latency_count, peak_usage, peak_demand;
} tallies;

typedef struct {
    tallies tally;
    double square;
    i64 M, mask, space, t, U, n, waiting;
    u32 free, size;
    u32 *nxt, *prv, *cnx, *cpr, *prompt, *output, *arrived, *activated;
    i64 latency[BINS];
} sim;

static void grow(sim *s, i64 extra) {
    u32 **fields[] = {&s->nxt, &s->prv, &s->cnx, &s->cpr, &s->prompt, &s->output, &s->arrived, &s->activated};
    for (int f = 0; f < 8; f++) *fields[f] = realloc(*fields[f], (s->size + extra) * sizeof(u32));
    for (u32 p = s->size; p + 1 < s->size + extra; p++) s->nxt[p] = p + 1;
    s->nxt[s->size + extra - 1] = s->free;
    s->free = s->size;
    s->size += extra;
    s->space += extra;
}

sim *sim_new(i64 M, i64 ring) {
    sim *s = calloc(1, sizeof(sim));
    s->M = M;
    s->mask = ring - 1;
    u32 first = ring > LINE + 1 ? ring : LINE + 1;
    grow(s, first);
    for (u32 p = 0; p < first; p++) s->nxt[p] = s->prv[p] = s->cnx[p] = s->cpr[p] = p;
    s->space = s->free = 0;
    grow(s, 1024);
    return s;
}

void sim_free(sim *s) {
    u32 *fields[] = {s->nxt, s->prv, s->cnx, s->cpr, s->prompt, s->output, s->arrived, s->activated};
    for (int f = 0; f < 8; f++) free(fields[f]);
    free(s);
}

void sim_read(const sim *s, tallies *tally, i64 *latency) {
    *tally = s->tally;
    for (int i = 0; i < BINS; i++) latency[i] = s->latency[i];
}

static i64 latency_bin(i64 latency) {
    int octave = 0;
    while ((latency >> (LINEAR + octave + 1)) > 0) octave++;
    return (1 << LINEAR) + (octave << FINE) + (latency >> (LINEAR - FINE + octave)) - (1 << FINE);
}

/* Execute `slots` slots: counts[i] requests arrive and budget[i] may start in the i-th; lengths
 * in order of arrival. Returns the number of requests read. */
i64 sim_advance(sim *s, i64 slots, const int32_t *counts, const int32_t *budget,
                const int32_t *prompts, const int32_t *outputs) {
    i64 need = 0, cursor = 0;
    for (i64 i = 0; i < slots; i++) need += counts[i];
    if (need > s->space - s->n - s->waiting) grow(s, need > s->space ? need : s->space);

    u32 *restrict nxt = s->nxt, *restrict prv = s->prv, *restrict cnx = s->cnx, *restrict cpr = s->cpr;
    u32 *restrict prompt = s->prompt, *restrict output = s->output;
    u32 *restrict arrived = s->arrived, *restrict activated = s->activated;
    const i64 M = s->M, mask = s->mask;
    tallies a = s->tally;
    double square = 0;
    i64 U = s->U, n = s->n, waiting = s->waiting;
    u32 free = s->free;

    for (i64 i = 0; i < slots; i++) {
        const i64 t = s->t + i;

        /* 1. Arrivals join the back of the line. */
        for (i64 k = counts[i]; k > 0; k--, cursor++) {
            if ((i64)prompts[cursor] + outputs[cursor] > M) {
                a.rejected++;
                continue;
            }
            u32 p = free, back = prv[LINE];
            free = nxt[p];
            prompt[p] = prompts[cursor];
            output[p] = outputs[cursor];
            arrived[p] = t;
            nxt[back] = p;
            prv[p] = back;
            nxt[p] = LINE;
            prv[LINE] = p;
            waiting++;
        }
        U += n;

        /* 2. Admission: the head of the line is spliced onto the active list. */
        u32 head = nxt[LINE], p = head;
        for (i64 left = budget[i]; left > 0 && p != LINE; left--) {
            u32 slot = (t + output[p] - 1) & mask, other = cnx[slot];
            cnx[p] = other;
            cpr[p] = slot;
            cpr[other] = p;
            cnx[slot] = p;
            activated[p] = t;
            U += prompt[p] + 1;
            n++;
            waiting--;
            p = nxt[p];
        }
        if (p != head) {
            u32 last = prv[p], tail = prv[0];
            nxt[tail] = head;
            prv[head] = tail;
            nxt[last] = 0;
            prv[0] = last;
            nxt[LINE] = p;
            prv[p] = LINE;
        }

        /* 3.-4. Usage, overflow, eviction. */
        if (U > a.peak_demand) a.peak_demand = U;
        if (U > M) {
            a.overflows++;
            do {
                u32 p = prv[0], made = (u32)t - activated[p], before = prv[p], after = nxt[p];
                U -= prompt[p] + made + 1;
                n--;
                waiting++;
                a.evictions++;
                a.wasted += made;
                nxt[before] = after;
                prv[after] = before;
                before = cpr[p], after = cnx[p];
                cnx[before] = after;
                cpr[after] = before;
                u32 front = nxt[LINE];
                nxt[p] = front;
                prv[p] = LINE;
                prv[front] = p;
                nxt[LINE] = p;
            } while (U > M);
        }
        a.tokens += n;
        a.usage_sum += U;
        square += (double)U * (double)U;
        if (U > a.peak_usage) a.peak_usage = U;
        a.waiting_sum += waiting;
        a.active_sum += n;

        /* 5. Completions at the end of the slot. */
        u32 slot = t & mask;
        for (u32 p = cnx[slot]; p != slot; p = cnx[p]) {
            U -= (i64)prompt[p] + output[p];
            n--;
            a.completed++;
            a.done_tokens += output[p];
            u32 before = prv[p], after = nxt[p];
            nxt[before] = after;
            prv[after] = before;
            i64 latency = (u32)(t + 1) - arrived[p];
            a.latency_sum += latency;
            a.latency_count++;
            s->latency[latency < (1 << LINEAR) ? latency : latency_bin(latency)]++;
            nxt[p] = free;
            free = p;
        }
        cnx[slot] = cpr[slot] = slot;
    }
    s->tally = a;
    s->square += square;
    s->t += slots;
    s->U = U;
    s->n = n;
    s->waiting = waiting;
    s->free = free;
    return cursor;
}

/* xoshiro256** (Blackman and Vigna 2018), seeded by splitmix64. */
typedef struct {
    u64 s[4];
} xoshiro;

static u64 rotl(u64 x, int k) { return (x << k) | (x >> (64 - k)); }

static u64 draw(xoshiro *x) {
    u64 *s = x->s, result = rotl(s[1] * 5, 7) * 9, shifted = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= shifted;
    s[3] = rotl(s[3], 45);
    return result;
}

/* The whole replication, drawing included: Poisson counts by inversion with a guide table (as
 * mcflow.workload.sampling does), lengths uniform over `classes` pairs, two requests a word. */
void sim_run(sim *s, i64 slots, i64 block, int32_t b_num, int32_t b_den, i64 seed, i64 low, i64 size, const double *cdf,
             i64 cells, const int32_t *guide, i64 classes, const int32_t *prompts, const int32_t *outputs) {
    xoshiro x;
    for (int i = 0; i < 4; i++) {
        u64 z = (seed + (i + 1) * 0x9E3779B97F4A7C15u);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        x.s[i] = z ^ (z >> 31);
    }
    int32_t *counts = malloc(block * sizeof *counts), *budget = malloc(block * sizeof *budget);
    int32_t *prompt = malloc(block * (low + size) * sizeof *prompt), *output = malloc(block * (low + size) * sizeof *output);
    for (i64 t = 0; t < slots; t += block) {
        i64 count = slots - t < block ? slots - t : block, total = 0;
        for (i64 i = 0; i < count; i++) {
            double u = (draw(&x) >> 11) * 0x1p-53;
            i64 k = guide[(i64)(u * cells)];
            while (cdf[k] <= u) k++;
            counts[i] = low + k;
            total += counts[i];
            budget[i] = (t + i + 1) * b_num / b_den - (t + i) * b_num / b_den;
        }
        for (i64 i = 0; i < total; i += 2) {
            u64 word = draw(&x);
            for (int half = 0; half < 2; half++, word >>= 32) {
                i64 k = ((word & 0xFFFFFFFFu) * classes) >> 32;
                prompt[i + half] = prompts[k];
                output[i + half] = outputs[k];
            }
        }
        sim_advance(s, count, counts, budget, prompt, output);
    }
    free(counts);
    free(budget);
    free(prompt);
    free(output);
}
