/* SPDX-License-Identifier: Apache-2.0
 *
 * The smallest whole program in C: every rank adds its array to the others'.
 *
 *     cc examples/allreduce.c -o allreduce $(python -m netfold.host.capi build/c)
 *     netfold run -np 4 --topo leafspine,2,2,4 -- ./allreduce
 */
#include <netfold.h>
#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 100000 };

static void check(netfold_status status) {
    if (status == NETFOLD_OK) return;
    fprintf(stderr, "%s: %s\n", netfold_status_name(status), netfold_error());
    exit(1); /* without netfold_leave: the other ranks hear that this one is lost */
}

int main(void) {
    static int mine[COUNT], sum[COUNT];
    netfold_comm *comm;
    check(netfold_join(NULL, &comm));
    int rank = netfold_rank(comm), size = netfold_size(comm);
    for (int i = 0; i < COUNT; i++) mine[i] = i + rank;

    netfold_request *request;
    check(netfold_allreduce(comm, mine, sum, COUNT, NETFOLD_INT32, NETFOLD_SUM, &request));
    /* the processor is free for something else here */
    check(netfold_wait(request));

    for (int i = 0; i < COUNT; i++) {
        if (sum[i] == size * i + size * (size - 1) / 2) continue;
        fprintf(stderr, "element %d: expected %d, got %d\n", i, size * i + size * (size - 1) / 2, sum[i]);
        return 1;
    }
    char how[1024];
    check(netfold_explain(comm, sizeof mine, how, sizeof how));
    check(netfold_leave(comm));
    printf("rank %d of %d: exact; %s\n", rank, size, how);
    return 0;
}
